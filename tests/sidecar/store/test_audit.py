"""The newest orders, of both databases."""

from support.records import NOW

from sidecar.store.queries import Reader
from sidecar.store.rows import AuditRow
from sidecar.store.writer import Writer


def test_newest_first_and_what_a_client_may_send(database_url: str) -> None:
    writer = Writer(database_url)
    for number in range(5):
        at = NOW + number % 3 + number / 1000
        path = f"/api/\0\ud800/{'x' * 600}" if number == 4 else "/api/v1/fallback"
        writer.put_audit(AuditRow(at, "i", "control", "::1", "PUT", path, 200, f"mode=auto: {number}"))
    writer.start()
    writer.close(20)
    reader = Reader(database_url)
    found = reader.audit(4)
    reader.close()
    assert [row["detail"] for row in found] == ["mode=auto: 2", "mode=auto: 4", "mode=auto: 1", "mode=auto: 3"]
    assert found[0].keys() == {"at", "instance", "scope", "client", "method", "path", "status", "detail"}
    assert found[1]["path"].startswith("/api/\ufffd\ufffd/xxx")
    assert len(found[1]["path"]) == 500
