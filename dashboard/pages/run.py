"""What `streamlit run` runs.

It is not in `dashboard/` itself: there Streamlit would take `pages/` for a page folder of its own, and the
first visitor of `/truncation` would see an empty page.
"""

from dashboard.app import main

main()
