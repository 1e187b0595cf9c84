"""One target behind the guarded application, without a listener."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from reason_spec.accelerator import Accelerator
from reason_spec.accelerator.adaptation import draft_to_adapt, open_adaptation
from reason_spec.chat.service import Chat
from reason_spec.errors import ReasonSpecError
from reason_spec.server.admission import Admission
from reason_spec.server.api_request import target_name
from reason_spec.server.app import Operation, create_app, starting_app
from reason_spec.server.guard import Guard
from reason_spec.server.keys import KeyRing, load_keys
from reason_spec.server.metrics import Metrics
from reason_spec.server.predicted_calls import open_predictions
from reason_spec.settings import Settings

logger = logging.getLogger(__name__)

Start = Callable[[Accelerator], Awaitable[None]]
"""Starts an accelerator and may show the progress."""


class Service:
    """An accelerator, and ``guard``, the ASGI application that answers from the first moment on.

    Args:
        start: starts the engines; None: without showing anything.

    Raises:
        SettingsError: answers are to be learnt and cannot be, or a rule for tools has an unknown form.
        DataError: the keys, or the model that predicts calls, cannot be read.
    """

    def __init__(self, settings: Settings, start: Start | None = None) -> None:
        self.settings = settings
        self._start_engines: Start = start or Accelerator.start
        keys = load_keys(settings.server, settings.suffix.tenant)
        self._accelerator = Accelerator.from_settings(settings)
        self._draft_to_adapt = None
        if settings.server.learn_folder is not None:
            self._draft_to_adapt = draft_to_adapt(settings, self._accelerator.generator.strategy())
        names = settings.server.served_models or (target_name(settings.target),)
        self.name = names[0]
        """The first served name of the target."""
        self._metrics = Metrics(self.name)
        self._predictions = open_predictions(settings.server.predicted_calls, self._metrics)
        self.operation = Operation(self._metrics)
        self._admission = Admission(settings.server, self._metrics, sheds=self._sheds)
        self._metrics.watch(self._admission)
        self._metrics.watch_controller(lambda: self._accelerator.load_controller)
        self.guard = Guard(
            starting_app(self.operation), keys, settings.server, on_response=self._metrics.responded
        )
        self._loading_tenants = asyncio.Lock()

    async def start(self) -> None:
        """Load the models and let requests pass.

        Raises:
            EngineError: a model could not be loaded.
        """
        await self._start_engines(self._accelerator)
        async with self._loading_tenants:
            await self._load_tenants(self.guard.keys)
        if (draft := self._draft_to_adapt) is not None:
            bundle = self._accelerator.bundle
            bundle.adaptation = await open_adaptation(
                self.settings, draft, bundle.target, bundle.draft, self._metrics.draft_tried
            )
            self._metrics.watch_adaptation(bundle.adaptation)
        app = create_app(
            Chat(self._accelerator),
            self._accelerator,
            self.settings.server,
            admission=self._admission,
            metrics=self._metrics,
            operation=self.operation,
            predictions=self._predictions,
        )
        engines = (self._accelerator.target, self._accelerator.draft)
        self.operation.engines = tuple(engine for engine in engines if engine is not None)
        for engine in self.operation.engines:
            engine.keep_alive()
        self.guard.app = app
        self.operation.phase = "ready"

    async def save(self) -> None:
        """Write the suffix cache to its folder."""
        if (sessions := self._accelerator.suffix_sessions) is not None:
            await asyncio.to_thread(sessions.save)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, let running ones end within these seconds, and close."""
        self.operation.phase = "draining"
        self._admission.drain()
        if late := await self.guard.drain(seconds):
            logger.warning("%d requests were not complete after %g seconds and were cancelled", late, seconds)
        # Requests of a hanging engine end with its worker.
        await self.close()

    async def close(self) -> None:
        """Save the suffix cache and end the engines."""
        await self._accelerator.close()
        if self._predictions is not None:
            self._predictions.close()

    async def read_keys_again(self) -> None:
        """Take the keys that the file has now; a damaged file changes nothing.

        New keys count once the texts of their tenants are loaded: their first requests would stop the server
        for it. Revoked ones end at once.
        """
        async with self._loading_tenants:
            try:
                keys = load_keys(self.settings.server, self.settings.suffix.tenant)
            except ReasonSpecError as error:
                logger.warning("the keys stay as they were: %s", error)
                return
            known = self.guard.keys.by_hash
            kept = {digest: client for digest, client in keys.by_hash.items() if digest in known}
            self.guard.keys = KeyRing(kept, keys.anyone)
            await self._load_tenants(keys)
            self.guard.keys = keys
            logger.info("the keys were read again")

    async def _load_tenants(self, keys: KeyRing) -> None:
        if (sessions := self._accelerator.suffix_sessions) is not None:
            await asyncio.to_thread(sessions.load, keys.tenants)

    def _sheds(self) -> bool:
        """Shed speculation by the load alone while the load controller does not know what passes cost."""
        controller = self._accelerator.load_controller
        return self.settings.load_control.use == "on" and not (
            controller is not None and controller.knows_costs
        )
