# SPDX-License-Identifier: Apache-2.0
"""Models from type annotations: what a function declares becomes tensors, and a way to call it.

The parts, in the order in which they use each other:

- `values`: one Python type as a tensor, and the conversion of its values from and to arrays.
- `annotations`: reads an annotation, also of a class whose fields are tensors, and says why one
  cannot be read.
- `signature`: the parameters and the result of a whole callable. Errors name its file and line.
- `served`: what `bind` needs of a callable, a class or a declared model, and how it is called.

Without `max_batch_size`, a function sees exactly what it declares, one request at a time. With it,
every array has one more axis in front, numbers are arrays of one axis, and texts are lists.
Nothing here knows a server.
"""
