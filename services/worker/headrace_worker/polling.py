"""`MODEL_CONTROL=poll`: looks at the model folder every so often. In the other modes: only at what it waits for.

A model that was asked for while its files were being copied is taken up once they are complete, in every mode: until
then it says LOADING, and something has to make that true.
"""

import asyncio
import logging
from datetime import timedelta
from typing import Final

from headrace_core.errors import ServingError
from headrace_worker.loader import Loader

log: Final = logging.getLogger(__name__)


async def follow(loader: Loader, *, every: timedelta) -> None:
    """Follows the folder until cancelled. A folder that can't be read for a while changes nothing."""
    said = ""
    while True:
        await asyncio.sleep(every.total_seconds())
        try:
            await loader.follow()
            said = ""
        except OSError as error:
            if str(error) != said:
                log.warning("the model folder can't be read; serving what is loaded", extra={"detail": str(error)})
            said = str(error)


async def take_up(loader: Loader, *, every: timedelta) -> None:
    """Loads what was still being copied when it was asked for, at the start or by a call. Until cancelled."""
    while True:
        await asyncio.sleep(every.total_seconds())
        for name in loader.unfinished():
            try:
                await loader.load(name)
            except ServingError as error:
                log.info("model not loaded yet", extra={"model": name, "reason": error.message})
