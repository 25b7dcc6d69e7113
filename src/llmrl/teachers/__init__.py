"""Teachers: advice for a student's actions, and the loss by which the student learns it."""
