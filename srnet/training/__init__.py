"""Training; the only folder that imports lightning, timm and wandb."""
