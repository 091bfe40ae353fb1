"""Where RL4Sys has it, so that an application changes nothing but the head of its imports."""
