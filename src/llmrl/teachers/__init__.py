"""Teachers: advice for the actions of a student, and the loss by which the student learns from it."""
