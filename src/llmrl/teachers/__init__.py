"""Teachers: what a student is told about what to do, and the loss that makes it listen."""
