"""What is shown while sources are loaded: a line that changes on a terminal, words for who asked for them elsewhere."""

from collections.abc import Collection

from opwire.cli.screen import Screen, counted
from opwire.cli.spinner import Spinner
from opwire.config.events import Failed, Loaded, LoadEvent, Started


class Loading(Spinner):
    """Shows the events of `open_config`, as long as the block lasts; failures of the sources in `unsaid` are not."""

    def __init__(self, screen: Screen, *, unsaid: Collection[str] = ()) -> None:
        super().__init__()
        self._screen = screen
        self._unsaid = unsaid
        self._waiting: dict[str, None] = {}

    def event(self, event: LoadEvent) -> None:
        """Something happened to a source."""
        match event:
            case Started(source):
                self._waiting[source] = None
            case Loaded(source, operations, seconds, notes) if source in self._waiting:
                del self._waiting[source]
                self._screen.detail(f"{source}: {counted(operations, 'operation')} in {seconds:.1f} s")
                for note in notes:
                    self._screen.detail(f"{source}: {note}")
            case Failed(source, error):
                self._waiting.pop(source, None)
                if not any(source == name or source.startswith(f"{name}.") for name in self._unsaid):
                    self._screen.warning(f"{source} is left out: {error}")
            case _:
                pass
        self.update(f"loading {', '.join(self._waiting)}")
