"""Results of a task in addition to scores: proposals, society, teachers, players."""
