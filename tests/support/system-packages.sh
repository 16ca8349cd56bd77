# Debian packages that some tests need: Chromium (the dashboard in a browser), the PostgreSQL server, Prometheus and
# Alertmanager.
# Where they cannot be installed, those tests are skipped and say why.
missing=""
command -v chromium >/dev/null 2>&1 || missing="chromium"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
command -v promtool >/dev/null 2>&1 || missing="$missing prometheus"
command -v amtool >/dev/null 2>&1 || missing="$missing prometheus-alertmanager"
if [ -n "$missing" ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing for the tests:$missing"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1 \
      || echo "could not install $missing; the tests that need them are skipped"
  else
    echo "tests that need these Debian packages are skipped: $missing (install them with apt-get as root)"
  fi
fi
