"""APIs of systems that we replace in, our sessions out: thin doors, for programs that were written for them."""
