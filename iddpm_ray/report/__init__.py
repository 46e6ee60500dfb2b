"""What a run cost and where its time went: from the records of its attempts to a table and a page."""
