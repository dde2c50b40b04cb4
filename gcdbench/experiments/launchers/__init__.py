"""Where the jobs of a sweep run: this machine, a Ray cluster, a Slurm cluster. Others are plugins."""
