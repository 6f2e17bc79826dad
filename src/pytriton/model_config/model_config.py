# SPDX-License-Identifier: Apache-2.0
"""How a bound model is served, beyond its inputs and outputs."""

from __future__ import annotations

import dataclasses

from pytriton.base.openai_routes import OpenAI, as_openai
from pytriton.model_config.common import DynamicBatcher, ModelWarmup, RateLimiter
from pytriton.model_config.sequence_batcher import SequenceBatcher
from pytriton.utils.checks import check_list, check_plain_fields, check_type


@dataclasses.dataclass
class ModelConfig:
    """How a bound model is served.

    Args:
        batching: whether tensors have a leading batch dimension and requests may be combined.
        max_batch_size: maximum number of rows of a batch.
        batcher: how requests are combined; None executes each request alone.
        response_cache: whether equal requests are answered from the cache; the server needs a cache
            configured too.
        decoupled: whether the model sends any number of responses to a request.
        model_warmup: requests that the model gets before it is ready.
        sequence: how requests belong to sequences; replaces `batcher`. None for requests that do
            not depend on earlier ones.
        rate_limiter: what each instance needs to run; the server's rate limiter must be on, too.
        openai: which of OpenAI's routes serve the model, as an `OpenAI` or by their names, such as
            "chat" or "chat,completions". None: they do not know it.

    Raises:
        PyTritonBadParameterError: if a field has another type.
    """

    batching: bool = True
    max_batch_size: int = 4
    batcher: DynamicBatcher | None = dataclasses.field(default_factory=DynamicBatcher)
    response_cache: bool = False
    decoupled: bool = False
    model_warmup: list[ModelWarmup] | None = None
    sequence: SequenceBatcher | None = None
    rate_limiter: RateLimiter | None = None
    openai: OpenAI | str | None = None

    def __post_init__(self) -> None:
        check_plain_fields(self)
        check_type(self.batcher, "batcher of ModelConfig", DynamicBatcher, type(None))
        if self.model_warmup is not None:
            check_list(self.model_warmup, "model_warmup", ModelWarmup, "ModelWarmup")
        check_type(self.sequence, "sequence", SequenceBatcher, type(None))
        check_type(self.rate_limiter, "rate_limiter", RateLimiter, type(None))
        self.openai = as_openai(self.openai)
