# SPDX-License-Identifier: Apache-2.0
import numpy as np
import tensorflow as tf

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

PIXELS, CLASSES = 28 * 28, 10


class Classifier(tf.Module):
    """A small network, compiled once for any number of images."""

    def __init__(self):
        super().__init__()
        random = tf.random.Generator.from_seed(0)
        self.hidden = tf.Variable(random.normal((PIXELS, 32), stddev=0.05))
        self.output = tf.Variable(random.normal((32, CLASSES), stddev=0.3))

    @tf.function(input_signature=[tf.TensorSpec((None, PIXELS), tf.float32)])
    def __call__(self, images):
        return tf.nn.softmax(tf.nn.relu(images @ self.hidden) @ self.output)


def bind(triton):
    classifier = Classifier()

    @batch
    def infer(images):
        return {"probabilities": classifier(images).numpy()}

    triton.bind(
        model_name="Classifier",
        infer_func=infer,
        inputs=[Tensor(name="images", dtype=np.float32, shape=(PIXELS,))],
        outputs=[Tensor(name="probabilities", dtype=np.float32, shape=(CLASSES,))],
        config=ModelConfig(max_batch_size=64),
    )


if __name__ == "__main__":
    with Triton() as triton:
        bind(triton)
        triton.serve()
