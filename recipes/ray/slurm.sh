#!/bin/bash
# A comparison on four nodes of a SLURM cluster: sbatch recipes/ray/slurm.sh. The folder of --output is shared by the nodes, or a URL.
#SBATCH --job-name=semfocus
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue

# The same command goes on where a job that ran out of time, or was requeued, has stopped.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit=1 ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus "$SLURM_CPUS_PER_TASK" -- \
    semfocus compare --preset paper --output "${OUTPUT:-runs/paper}" --engine ray --address auto
