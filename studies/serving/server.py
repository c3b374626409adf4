"""The process of `ablate serve`: finds what to serve, loads it, and answers until Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import UserError
from pipeline.models import cpu
from pipeline.models.loading import CausalLM, device_of, freeze
from pipeline.models.pretrained_tokenizer import load_tokenizer
from pipeline.run.layout import Layout
from pipeline.stages.common import quiet_libraries
from pipeline.stages.new_actor import load_reference
from studies.serving.app import Service, create_app
from studies.serving.batching import Waiting, Worker
from studies.serving.finding import find_source
from studies.serving.limits import Limits
from studies.serving.measuring import Measurer
from studies.serving.metrics import Metrics
from studies.serving.networks import Holder
from studies.serving.sources import Source, TrialSource
from studies.tracking.ui import check_free

HOST = "127.0.0.1"
HERE = frozenset({HOST, "localhost", "[::1]"})
"""Names of this machine in a browser's address."""
LOOPBACK = (HOST, "localhost", "::1")
GRACE_SECONDS = 10
"""For requests that are being answered when the server ends."""
UNMEASURED = "an exported folder has neither a reference nor a reward; name its trial instead"

Say = Callable[[str], None]


def serve(
    name: str,
    layout: Layout,
    port: int,
    host: str = HOST,
    threads: int = 1,
    profile: str | None = None,
    share: float = Limits.share,
) -> None:
    """Serve a policy until Ctrl-C or SIGTERM. Raises `UserError` for what cannot be served, or a port that is taken."""
    import uvicorn

    from studies.serving.request_heads import HeadLimit

    check_free(host, port)
    cpu.keep_freed_memory()
    torch.set_num_threads(threads)
    quiet_libraries()
    device = device_of("auto")
    source, limits = find_source(name, layout, device, profile), Limits(share=share)
    service = build(source, _note, limits, HERE if host in LOOPBACK else None)
    config = uvicorn.Config(
        create_app(service),
        host=host,
        port=port,
        http=HeadLimit,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    _note(f"{service.name}: answering with {service.holder.now.revision} ({service.holder.now.revision.state})")
    address = f"[{host}]" if ":" in host else host
    print(f"Serving at http://{address}:{port} (Ctrl-C stops it); completions at /v1/completions", flush=True)
    if host not in LOOPBACK:
        _note(f"warning: {host} can be reached from other machines, and there is no password")
    start(service)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        uvicorn.Server(config).run()  # which raises the signal again that has ended it
    except KeyboardInterrupt:
        return
    finally:
        stop(service)


def build(source: Source, say: Say, limits: Limits | None = None, hosts: frozenset[str] | None = HERE) -> Service:
    """Everything that the routes work on, its first weights loaded, no thread started yet. Raises `UserError`,
    `Fault`."""
    tokenizers = _tokenizer(source.tokenizer), _tokenizer(source.tokenizer)  # each is used by one thread at a time
    if not isinstance(source, TrialSource):
        return assemble(source, tokenizers, say, limits=limits, hosts=hosts)
    reference = freeze(load_reference(source.made["sft"], source.config.adapter.quantize, source.device))
    measurer = Measurer.of(source.config, source.made, tokenizers[0], source.device)
    return assemble(source, tokenizers, say, reference, measurer, limits, hosts)


def assemble(
    source: Source,
    tokenizers: tuple[Any, Any],
    say: Say,
    reference: CausalLM | None = None,
    measurer: Measurer | None = None,
    limits: Limits | None = None,
    hosts: frozenset[str] | None = HERE,
) -> Service:
    """The service from its parts; `tokenizers` are two of the same kind, the first that of the measurer."""
    limits, metrics = limits or Limits(), Metrics()
    holder, waiting = Holder(source, reference, metrics, say), Waiting(limits)
    positions = getattr(holder.now.policy.config, "max_position_embeddings", None)
    worker = Worker(waiting, holder, tokenizers[0], measurer, metrics, limits.share)
    unmeasured = None if measurer else UNMEASURED
    return Service(source.name, holder, tokenizers[1], worker, waiting, metrics, limits, positions, unmeasured, hosts)


def start(service: Service) -> None:
    """Start to answer, and to look for newer weights."""
    service.worker.thread.start()
    service.holder.follow()


def stop(service: Service) -> None:
    """Answer what waits, and end."""
    service.holder.close()
    service.waiting.close()
    service.worker.thread.join(GRACE_SECONDS)


def _tokenizer(path: Path) -> Any:
    try:
        tokenizer = load_tokenizer(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no tokenizer loads from it ({str(error).splitlines()[0]})") from None
    if tokenizer.eos_token_id is None:
        raise UserError(f"{path}: its tokenizer has no EOS token, so a completion could not end")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
