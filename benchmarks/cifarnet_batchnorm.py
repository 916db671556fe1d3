"""CifarNet with a batch-norm layer after each convolution: small enough to measure BN-LG without a GPU.

python benchmarks/accuracy.py --model cifarnet_batchnorm:cifarnet_batchnorm ...
"""

from torch import nn

from ggs.train.models import CifarNet


def cifarnet_batchnorm(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """CifarNet whose convolutions are each followed by ``nn.BatchNorm2d``."""
    model = CifarNet(num_classes, in_channels, image_size)
    layers: list[nn.Module] = []
    for layer in model.features:
        layers.append(layer)
        if isinstance(layer, nn.Conv2d):
            layers.append(nn.BatchNorm2d(layer.out_channels))
    model.features = nn.Sequential(*layers)
    return model
