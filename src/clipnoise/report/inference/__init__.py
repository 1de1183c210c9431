"""What confirmed runs of a league allow to be said: tests, intervals, statements over tasks."""
