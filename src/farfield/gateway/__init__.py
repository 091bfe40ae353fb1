"""Live programs' calls in, runs that learn from them out: the process of `farfield serve`."""
