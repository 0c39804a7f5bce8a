"""Results for people: tables, colour composites and figures."""
