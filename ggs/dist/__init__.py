"""Workers and what they say to each other: torch.distributed is called here and nowhere else."""
