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

-- A reading taken while nothing ran and nobody waited; null at any other time, and where either is not known.
CREATE OR REPLACE MACRO at_idle(value, running, waiting) AS if(running = 0 AND waiting = 0, value, NULL);

-- Readings as {s, v}, in order of time, without those that are no number or have no instant; null where none is left.
CREATE OR REPLACE MACRO readings_of(value, seen_at) AS
    list({s: epoch_us(seen_at) / 1e6, v: value::DOUBLE} ORDER BY seen_at) FILTER (isfinite(value::DOUBLE) AND seen_at IS NOT NULL);

-- The same course in at most `most` readings: medians of as many neighbours each.
CREATE OR REPLACE MACRO thinned(readings, most) AS
    list_transform([readings], given -> if(len(given) <= most, given, list_transform(
        list_transform(range(most), part -> given[1 + part * len(given) // most:(part + 1) * len(given) // most]),
        near -> {s: list_median(list_transform(near, one -> one.s)), v: list_median(list_transform(near, one -> one.v))})))[1];

-- Median of the slopes between all pairs, a second.
CREATE OR REPLACE MACRO median_slope(readings) AS
    list_transform([readings], given -> list_median(flatten(list_transform(given, (one, place) -> list_transform(
        given[place + 1:], later -> (later.v - one.v) / nullif(later.s - one.s, 0))))))[1];

-- Aggregate: the slope a second by Theil and Sen, which under three in ten readings that are out of place do not change much.
-- Null with fewer than five readings, and where all are of one instant.
CREATE OR REPLACE MACRO theil_sen(value, seen_at) AS
    list_transform([readings_of(value, seen_at)], given -> if(len(given) < 5, NULL, median_slope(thinned(given, 240))))[1];

-- How far a reading lies beside its neighbours, as a standard deviation; by medians, so that jumps and a steady rise do not count.
CREATE OR REPLACE MACRO steps_of(readings) AS
    list_transform(list_zip(readings[:-2], readings[2:]), pair -> pair[2].v - pair[1].v);
CREATE OR REPLACE MACRO noise_of(readings) AS
    1.05 * list_transform([list_median(steps_of(readings))], usual -> list_median(list_transform(steps_of(readings), step -> abs(step - usual))))[1];

-- Whether six medians of a course have levelled off: they do not rise out of the noise, or their last third rises at under
-- six tenths of the pace of the whole. A straight rise keeps its pace, one that saturates within half of the time does not.
CREATE OR REPLACE MACRO levelled(six, noise) AS
    six[6].v - six[1].v <= noise
    OR (six[6].v - six[4].v) / nullif(six[6].s - six[4].s, 0) < 0.6 * (six[6].v - six[1].v) / nullif(six[6].s - six[1].s, 0);

-- Aggregate: whether a gauge has stopped growing, or never grew. Null with fewer than twelve readings.
CREATE OR REPLACE MACRO plateau(value, seen_at) AS
    list_transform([readings_of(value, seen_at)], given -> if(len(given) < 12, NULL,
        levelled(thinned(given, 6), 13 * noise_of(given) / sqrt(len(given)))))[1];

-- A part of a whole; null where there is none.
CREATE OR REPLACE MACRO share(part, whole) AS part / nullif(whole, 0);

-- Whether a duration is that of a limit: as long, or as much longer as a hop takes to notice and to say so.
CREATE OR REPLACE MACRO equals_limit(ms, limit_ms) AS
    ms BETWEEN limit_ms - greatest(0.005 * limit_ms, least(250, 0.05 * limit_ms))
           AND limit_ms + greatest(0.03 * limit_ms, least(1500, 0.2 * limit_ms));

-- What came between two readings of a histogram's counts; null after a restart, and where the buckets are others.
CREATE OR REPLACE MACRO hist_sub(later, earlier) AS
    list_transform([list_transform(list_zip(later, earlier), pair -> pair[1] - pair[2])], left_over ->
        if(len(later) = len(earlier) AND list_min(left_over) >= 0, left_over, NULL))[1];

-- A quantile of a histogram (counts a bucket, not cumulative), with readings spread evenly within theirs; of the last, open bucket
-- its lower bound. Null where nothing was counted.
CREATE OR REPLACE MACRO hist_quantile(buckets, counts, quantile) AS
    list_transform([list_transform(range(1, len(counts) + 1), n -> list_sum(counts[1:n]))], sums -> if(sums[-1] > 0,
        list_transform([len(list_filter(sums, one -> one < quantile * sums[-1])) + 1], n ->
            coalesce(buckets[n - 1], 0) + (coalesce(buckets[n], buckets[n - 1]) - coalesce(buckets[n - 1], 0))
                * (quantile * sums[-1] - coalesce(sums[n - 1], 0)) / nullif(counts[n], 0))[1], NULL))[1];
