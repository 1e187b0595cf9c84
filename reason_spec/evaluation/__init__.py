"""Answer whole problem files: runs that resume, grading, statistics and results."""
