-- Functions that runbooks and `lensd sql` may use beside DuckDB's own. Made in the in-memory catalogue, so every cursor has them.

-- A remaining attribute of a span or event as text; null where it is not there. Attributes are JSON text.
CREATE OR REPLACE MACRO attr(attributes, name) AS json_extract_string(attributes, name);

-- Marks a column as evidence; resolved into the exact text behind it after the query.
CREATE OR REPLACE MACRO cite(src, name) AS src || '#' || name;

-- How far a list of counter readings went up; a reading below the one before it is a restart from zero.
CREATE OR REPLACE MACRO increase_of(readings) AS
    list_sum(list_transform(list_zip(readings[:-2], readings[2:]), pair -> if(pair[2] >= pair[1], pair[2] - pair[1], pair[2])));

-- Aggregates over a counter: how far it went up, and how fast a second. Null with fewer than two readings.
CREATE OR REPLACE MACRO increase(counter, seen_at) AS
    increase_of(list(counter ORDER BY seen_at) FILTER (counter IS NOT NULL AND seen_at IS NOT NULL));

CREATE OR REPLACE MACRO rate(counter, seen_at) AS
    increase(counter, seen_at) * 1e6 / nullif(
        max(epoch_us(seen_at)) FILTER (counter IS NOT NULL) - min(epoch_us(seen_at)) FILTER (counter IS NOT NULL), 0);
