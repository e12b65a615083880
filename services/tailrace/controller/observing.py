"""A controller as its metrics endpoint sees it: whether it is ready, and what a scrape shows."""

from __future__ import annotations

from tailrace.controller.controller import Controller
from tailrace.controller.counting import tally
from tailrace.controller.settings import ControllerSettings
from tailrace.meta.image import ClusterImage
from tailrace.metrics.common import NetworkView, StoreView, store_trouble
from tailrace.metrics.controller import ClusterView, put_controller
from tailrace.metrics.families import Page
from tailrace.transport.measured import MeasuredNetwork


class ObservedController:
    """Asks the parts of one controller, on its own loop."""

    role = "controller"

    def __init__(
        self,
        controller: Controller,
        settings: ControllerSettings,
        network: MeasuredNetwork,
    ) -> None:
        self._controller = controller
        self._network = network
        self.number = settings.controller_id

    def why_not_ready(self) -> str:
        """Ready: it listens and the store answers; standing by is as good as being active."""
        if not self._controller.address:
            return "it does not listen yet"
        return store_trouble(self._controller.store_view())

    def store_view(self) -> StoreView:
        return self._controller.store_view()

    def network_view(self) -> NetworkView:
        return self._network.view()

    async def run(self) -> None:
        """Nothing has to be done between two scrapes."""

    async def fill(self, page: Page) -> None:
        """The cluster is shown by the controller that is active, once it has an image of it."""
        controller = self._controller
        term, image = controller.term, controller.image
        cluster = None
        if term is not None and image is not None and image.revision:
            cluster = _view(term.epoch, image, controller.queue)
        put_controller(page, controller.counts, cluster)


def _view(epoch: int, image: ClusterImage, queue: dict[str, int]) -> ClusterView:
    live = {(number, each.epoch) for number, each in image.coordinators.items()}
    unowned = sum(
        (each.record.owner, each.record.owner_epoch) not in live for each in image.shards.values()
    )
    return ClusterView(
        epoch=epoch,
        brokers=len(image.brokers),
        cordoned=len(image.cordons),
        coordinators=len(image.coordinators),
        shards_unowned=unowned,
        topics=len(image.topics),
        reassignments=len(image.reassignments),
        deletions=len(image.deletions),
        unreadable=len(image.damaged),
        tally=tally(image),
        queue=queue,
    )
