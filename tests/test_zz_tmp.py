import pytest, torch
@pytest.mark.parametrize("i", range(600))
def test_a(i): pass
