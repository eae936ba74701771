"""The demonstration: a bridge, three panes and their hooks as real processes, real kills, and every claim checked."""
