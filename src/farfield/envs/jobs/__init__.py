"""HPC job scheduling: a trace of jobs in, an environment that asks which waiting job is next out.

trace.py (jobs and their machine) · swf.py (files of the Parallel Workloads Archive) · lublin.py (traces that we draw) ·
cluster.py (time, processors, queue) · rules.py (FCFS, SJF, F1, WFP3, UNICEP) · scores.py (what a schedule costs) ·
views.py (what is seen) · env.py (Gymnasium) · trials.py (policies and rules on the same windows)
"""
