"""How often one address may ask. Pure: the time is an argument."""

from collections import OrderedDict
from collections.abc import Hashable
from ipaddress import IPv6Address, ip_address

#: Addresses that are known at a time.
MOST = 1000
#: Seconds; far below the time between two requests, far above what sums of floating-point numbers are off by.
_ROUNDING_S = 1e-6


class Buckets:
    """A token bucket per key: `burst` tokens (one at least), of which `per_second` come back.

    In t seconds a key takes at most burst + per_second * t tokens. Of more than `most` keys the idlest are forgotten,
    and would begin with a full bucket.
    """

    def __init__(self, per_second: float, burst: float, most: int = MOST) -> None:
        self._each_s = 1 / per_second
        self._burst_s = max(burst, 1) / per_second
        self._most = most
        #: Key -> when its bucket will be full again; the one that asked last is the last.
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: Hashable, now: float) -> float:
        """Take a token of `key` at `now`, in seconds: 0 where there was one, else the seconds until there will be."""
        full_at = max(self._full_at.pop(key, now), now)
        wait_s = full_at + self._each_s - now - self._burst_s
        passes = wait_s <= _ROUNDING_S
        # Whoever is refused stays known: to be forgotten would be a full bucket.
        self._full_at[key] = full_at + self._each_s if passes else full_at
        if len(self._full_at) > self._most:
            self._full_at.popitem(last=False)
        return 0.0 if passes else wait_s


def network(host: str) -> str:
    """What of the client's address `host` is counted as one: all of IPv4's, and of IPv6's the /64 that a host has."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64))
