"""Pictures as a pinned list of rows, an order that is a pure function of position, and bytes made into pixels."""
