"""The process that reads histories, asks sources and refreshes what the timetable says is due."""
