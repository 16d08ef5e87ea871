"""Sources that several of these cells use."""

CENTRED = """
    class Centred(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("centre", torch.zeros(8))

        def forward(self, x):
            out = super().forward({given})
            if self.training:
                {kept}
            return out

    model = Centred()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
EVEN = "loader = DataLoader(dataset, 8, drop_last=True)"
CUT = """
    for x, y in loader:
        opt.zero_grad()
        for a, b in zip(x.split({size}), y.split({size})):
            (F.cross_entropy(model(a), b) / {pieces}).backward()
        opt.step()
"""
PADDED = """
    sequences = [torch.randn(1 + i % 7, 8) for i in range(44)]

    def collate(samples):
        sequences, ys = zip(*samples)
        return nn.utils.rnn.pad_sequence(sequences, batch_first=True), torch.stack(ys)

    loader = DataLoader(list(zip(sequences, Y)), 8, collate_fn=collate)
"""
RAGGED = """
    class Ragged(IterableDataset):
        def __iter__(self):
            for start in range(0, 40, 8):
                yield [(x, y) for x, y in zip(X[start:start + 8], Y[start:start + 8])]

    loader = DataLoader(Ragged(), batch_size=2, collate_fn=lambda batches: sum(batches, []))
"""
