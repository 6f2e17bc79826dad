# SPDX-License-Identifier: Apache-2.0
"""A backend that uses `pb_utils` in every way that vLLM's does, around an engine that is a toy.

The code is our own. What it copies is the use: which functions are called, from which thread, with
which values. So it shows whether the real one could run here.
"""

import asyncio
import json
import os
import queue
import threading

import numpy as np
import triton_python_backend_utils as pb_utils
from utils.engine import ToyEngine
from utils.metrics import StatLogger
from utils.request import GenerateRequest

_MODEL_FILE = "model.json"
_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Answers each request from the thread of an event loop, or from one for streams."""

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config):
        flags = (
            "stream",
            "exclude_input_in_output",
            "return_finish_reason",
            "return_cumulative_logprob",
            "return_logprobs",
            "return_num_input_tokens",
            "return_num_output_tokens",
        )
        inputs = [
            {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]},
            {"name": "image", "data_type": "TYPE_STRING", "dims": [-1], "optional": True},
            {
                "name": "sampling_parameters",
                "data_type": "TYPE_STRING",
                "dims": [1],
                "optional": True,
            },
            *(
                {"name": name, "data_type": "TYPE_BOOL", "dims": [1], "optional": True}
                for name in flags
            ),
        ]
        outputs = [
            {"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]},
            {"name": "finish_reason", "data_type": "TYPE_STRING", "dims": [-1]},
            {"name": "cumulative_logprob", "data_type": "TYPE_FP32", "dims": [-1]},
            {"name": "logprobs", "data_type": "TYPE_STRING", "dims": [-1]},
            {"name": "num_input_tokens", "data_type": "TYPE_UINT32", "dims": [1]},
            {"name": "num_output_tokens", "data_type": "TYPE_UINT32", "dims": [-1]},
        ]
        config = auto_complete_model_config.as_dict()
        known = {each["name"] for each in config["input"]}
        for each in inputs:
            if each["name"] not in known:
                auto_complete_model_config.add_input(each)
        known = {each["name"] for each in config["output"]}
        for each in outputs:
            if each["name"] not in known:
                auto_complete_model_config.add_output(each)
        auto_complete_model_config.set_model_transaction_policy(dict(decoupled=True))  # noqa: C408
        auto_complete_model_config.set_max_batch_size(0)
        return auto_complete_model_config

    def initialize(self, args):
        self.args = args
        self.logger = pb_utils.Logger
        self.model_config = json.loads(args["model_config"])
        text_output = pb_utils.get_output_config_by_name(self.model_config, "text_output")
        self.output_dtype = pb_utils.triton_string_to_numpy(text_output["data_type"])
        assert pb_utils.using_decoupled_model_transaction_policy(self.model_config)
        assert int(args["model_instance_device_id"]) >= 0
        self._checks_health = self._is_set("ENABLE_VLLM_HEALTH_CHECK")
        self._init_engine()
        self._responses = queue.Queue()
        self._response_thread = threading.Thread(target=self._send_responses)
        self._response_thread.start()
        self.logger.log_info(f"stand-in is initialized: {args['model_instance_kind']}")

    def _is_set(self, key):
        parameters = self.model_config["parameters"]
        return key in parameters and parameters[key]["string_value"].lower() == "true"

    def _init_engine(self):
        path = os.path.join(pb_utils.get_model_dir(), _MODEL_FILE)  # noqa: PTH118  as vLLM's does
        assert os.path.isfile(path), f"'{_MODEL_FILE}' containing engine args must be there"  # noqa: PTH113
        with open(path) as file:  # noqa: PTH123
            self.engine_args = json.load(file)
        self._metrics = None
        if self._is_set("REPORT_CUSTOM_METRICS") and not self.engine_args.get("disable_log_stats"):
            labels = {"model": self.args["model_name"], "version": self.args["model_version"]}
            try:
                self._metrics = StatLogger(labels)
            except pb_utils.TritonModelException as error:
                if "metrics not supported" not in str(error):
                    raise
        self._started = threading.Event()
        self._ongoing = 0
        self._event_thread = threading.Thread(target=asyncio.run, args=(self._run_engine(),))
        self._event_thread.start()
        self._started.wait()

    async def _run_engine(self):
        self._loop = asyncio.get_running_loop()
        self._shutdown = asyncio.Event()
        self._engine = ToyEngine(self.engine_args)
        self._started.set()
        await self._shutdown.wait()
        while self._ongoing:
            self.logger.log_verbose(f"stand-in awaits {self._ongoing} requests")
            await asyncio.sleep(0.01)
        self.logger.log_info("stand-in has shut down")

    def execute(self, requests):
        if self._checks_health and not self._engine.is_healthy():
            self.logger.log_warn("stand-in unloads itself")
            pb_utils.unload_model(self.args["model_name"])
            for request in requests:
                error = pb_utils.TritonError(
                    message="the engine is not healthy", code=pb_utils.TritonError.UNAVAILABLE
                )
                request.get_response_sender().send(
                    pb_utils.InferenceResponse(error=error), flags=_FINAL
                )
            return
        for request in requests:
            asyncio.run_coroutine_threadsafe(self._generate(request), self._loop)
        return

    async def _generate(self, request):
        self._ongoing += 1
        sender = request.get_response_sender()
        state = {"sender": sender, "is_cancelled": False}
        try:
            asked = GenerateRequest(request, self.output_dtype)
            if asked.adapter:
                self._refuse_adapter(asked, sender)
                return
            await self._answer(asked, state)
        except Exception as error:  # noqa: BLE001  the client is told
            self.logger.log_error(f"stand-in could not generate: {error}")
            text = pb_utils.Tensor("text_output", np.asarray(["N/A"], dtype=self.output_dtype))
            response = pb_utils.InferenceResponse(
                output_tensors=[text], error=pb_utils.TritonError(f"Error generating: {error}")
            )
            sender.send(response, flags=_FINAL)
        finally:
            self._ongoing -= 1

    async def _answer(self, asked, state):
        self.logger.log_info(f"stand-in generates for {asked.prompt}")
        last = None
        async for output in self._engine.generate(asked.prompt, asked.sampling):
            if self._metrics is not None:
                self._metrics.record(output)
            if state["is_cancelled"] or (not asked.stream and state["sender"].is_cancelled()):
                self._engine.abort(asked.prompt)
                self.logger.log_info(f"stand-in cancelled {asked.prompt}")
                error = pb_utils.TritonError(
                    message="the request was cancelled", code=pb_utils.TritonError.CANCELLED
                )
                response = pb_utils.InferenceResponse(error=error)
                if asked.stream:
                    self._responses.put_nowait((state, response, _FINAL))
                else:
                    state["sender"].send(response, _FINAL)
                return
            if asked.stream:
                flags = _FINAL if output.is_finished else 0
                self._responses.put_nowait((state, asked.streamed(output), flags))
            last = output
        if not asked.stream:
            state["sender"].send(asked.whole(last), _FINAL)

    def _refuse_adapter(self, asked, sender):
        error = pb_utils.TritonError(f"there is no adapter {asked.adapter}")
        # As vLLM's backend does: the method itself becomes the element of the array.
        text = pb_utils.Tensor("text_output", np.asarray([error.message], dtype=self.output_dtype))
        sender.send(pb_utils.InferenceResponse(output_tensors=[text], error=error), flags=_FINAL)

    def _send_responses(self):
        while True:
            item = self._responses.get()
            if item is None:
                return
            state, response, flags = item
            try:
                state["sender"].send(response, flags)
                if not state["is_cancelled"]:
                    state["is_cancelled"] = state["sender"].is_cancelled()
            except Exception as error:  # noqa: BLE001  the thread serves other requests
                self.logger.log_error(f"stand-in could not send: {error}")
                state["is_cancelled"] = True

    def finalize(self):
        self.logger.log_info("stand-in finalizes")
        self._loop.call_soon_threadsafe(self._shutdown.set)
        self._event_thread.join()
        self._responses.put(None)
        self._response_thread.join()
        if self._metrics is not None:
            self._metrics.finalize()
        self.logger.log_info("stand-in is finalized")
