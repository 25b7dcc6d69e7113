"""What the runs of a task tell beside their scores: proposals, society, teachers, players."""
