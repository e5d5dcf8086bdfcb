"""The unrolled cell against torch's own fused one."""

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from discreet.models.bilstm import BiLSTM, BiLSTMConfig


def fused_twin(model: BiLSTM) -> torch.nn.LSTM:
    half = model.config.hidden_size // 2
    twin = torch.nn.LSTM(model.config.embedding_size, half, batch_first=True, bidirectional=True)
    for direction, end in ((model.forwards, ""), (model.backwards, "_reverse")):
        getattr(twin, f"weight_ih_l0{end}").data.copy_(direction.from_input.weight)
        getattr(twin, f"bias_ih_l0{end}").data.copy_(direction.from_input.bias)
        getattr(twin, f"weight_hh_l0{end}").data.copy_(direction.from_state.weight)
        getattr(twin, f"bias_hh_l0{end}").data.zero_()
    return twin


def test_it_computes_what_the_fused_network_does() -> None:
    torch.manual_seed(0)
    model = BiLSTM(BiLSTMConfig(vocab_size=50, embedding_size=7, hidden_size=10))
    ids = torch.randint(0, 50, (4, 9))
    lengths = torch.tensor([9, 4, 1, 6])
    mask = (torch.arange(9) < lengths[:, None]).long()
    packed = pack_padded_sequence(model.words(ids), lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(fused_twin(model)(packed)[0], batch_first=True, total_length=9)
    torch.testing.assert_close(model(ids, mask).last_hidden_state, expected)


def test_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    model = BiLSTM(BiLSTMConfig(vocab_size=50, embedding_size=7, hidden_size=10))
    ids = torch.randint(0, 50, (2, 5))
    alone = model(ids, torch.ones(2, 5, dtype=torch.long)).last_hidden_state
    padded = torch.cat([ids, torch.randint(0, 50, (2, 3))], dim=1)
    mask = torch.tensor([[1] * 5 + [0] * 3] * 2)
    torch.testing.assert_close(model(padded, mask).last_hidden_state[:, :5], alone)
