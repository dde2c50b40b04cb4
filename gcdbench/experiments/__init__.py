"""Many runs on many machines: an experiment becomes jobs, a launcher brings them where they run, one table shows them.

A job is a file with the runs that share trunk passes and a command that trains them (`gcdbench job FILE`). Everything
else is in the run directories: what is finished, what continues, what has failed.
"""
