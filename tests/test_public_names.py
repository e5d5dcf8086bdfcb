"""The public names are true: each can be imported and says what it is."""

import discreet


def test_every_public_name_is_there_and_explains_itself() -> None:
    for name in discreet.__all__:
        thing = getattr(discreet, name)
        assert thing.__doc__, name
        assert thing.__name__ == name
    assert len(set(discreet.__all__)) == len(discreet.__all__)
    assert set(discreet.__all__) <= set(dir(discreet))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(discreet, "no_such_name")
