"""Which causes stand right now: findings of every tick become incidents that open, last and resolve.

An incident stands on one label and one (engine, model, gpu, key). It takes more to open one than to keep it:

- `scope: request`: each finding is one request hit. The incident opens when `alert.min_requests` of them came `within` the
  time and they are `alert.min_share` of the requests served in it; it resolves when none came for `hold.close_after`.
- `scope: window`: a finding says that the condition stands at this tick. The incident opens when it has stood at every tick
  for `hold.open_after`; it resolves when it has stood at none for `hold.close_after`.

A tick at which a rule could not be evaluated says neither. What another finding explains is noted on that one's incident.
Pure: no clock, no store; severity, stage and subject are fixed when an incident opens, since receivers pair by them.
"""

from lensd.incidents.machine import Incidents as Incidents
from lensd.incidents.rows import from_row as from_row
from lensd.incidents.rows import to_row as to_row
from lensd.incidents.rules import Served as Served
