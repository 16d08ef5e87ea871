"""What belongs to a batch takes effect when the batch is used, also through two readers."""

from nbmgpu.rank.data.current_batch import BatchInUse
from nbmgpu.rank.data.read_ahead import LoaderAction, Queue, ReadAhead


def read_ahead() -> ReadAhead:
    return ReadAhead(BatchInUse(on_wait=lambda: None, on_doubt=lambda: None))


class Loader:
    """Yields numbers; says when each begins and when the pass is over."""

    def __init__(self, ahead: ReadAhead) -> None:
        self.ahead = ahead
        self.said: list[str] = []

    def play(self, word: str, begins: bool) -> None:
        self.ahead.play(LoaderAction(lambda: self.said.append(word), begins))

    def __iter__(self):
        try:
            for number in range(4):
                self.play(str(number), begins=True)
                yield number
        finally:
            self.play("end", begins=False)


def one_ahead(loader):
    """Look one batch ahead, as accelerate does."""
    queue, batches = Queue(), iter(loader)
    ahead = loader.ahead
    with ahead.into(queue):
        batch = next(batches)
    while batch is not None:
        with ahead.into(queue):
            following = next(batches, None)
        ahead.begin_next(queue)
        yield batch
        batch = following
    ahead.end(queue)


def test_without_a_reader_everything_is_at_once():
    loader = Loader(read_ahead())
    for number in loader:
        assert loader.said[-1] == str(number)
        loader.ahead.in_use.use()
    assert loader.said == ["0", "1", "2", "3", "end"]


def test_a_batch_begins_when_it_is_handed_out():
    loader = Loader(read_ahead())
    for number in one_ahead(loader):
        assert loader.said[-1] == str(number)
        loader.ahead.in_use.use()
    assert loader.said == ["0", "1", "2", "3", "end"]


def test_a_reader_of_a_reader_hands_out_in_time_too():
    loader = Loader(read_ahead())
    ahead, queue = loader.ahead, Queue()
    batches = one_ahead(loader)
    for _ in range(2):
        with ahead.into(queue):
            group = [next(batches), next(batches)]
        for number in group:
            ahead.begin_next(queue)
            assert loader.said[-1] == str(number)
            ahead.in_use.use()
    with ahead.into(queue):
        assert next(batches, None) is None
    ahead.end(queue)
    assert loader.said[-1] == "end"


def test_what_was_skipped_or_left_over_never_begins():
    loader = Loader(read_ahead())
    ahead, queue = loader.ahead, Queue()
    with ahead.into(queue):
        list(loader)
    ahead.drop_next(queue)
    ahead.begin_next(queue)
    ahead.in_use.use()
    ahead.end(queue)
    assert loader.said == ["1", "end"]
