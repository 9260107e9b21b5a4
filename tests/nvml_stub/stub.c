/* libnvidia-ml.so.1 that plays a script: the file named by NVML_STUB_SCRIPT, one `STEP DEVICE KEY VALUE` a line, in order.
 *
 * DEVICE is a card (0), an instance of a divided one (0.1), or - for the library as a whole. A step begins NVML_STUB_STEP_MS after the
 * one before, or with stub_advance() where that is not set. Every call takes NVML_STUB_CALL_US.
 * Keys of a device: those of `names`; lost (its handles stay dead until the library is opened again), hidden (from the next opening),
 * proc.PID (bytes; -1: not told; -2: gone), xid (an event), fail.FUNCTION (code that this function gives; of -, for every device).
 * Keys of the library: cards, init (code of its opening), block.FUNCTION (1: the call never comes back), mark (the file named by
 * NVML_STUB_MARK comes to be).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CARDS 16
#define INSTANCES 7
#define MOST_PROCESSES 64
#define MOST_RULES 64
#define MOST_EVENTS 1024

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SIZE = 7, TIMEOUT = 10, LOST = 15, VERSION = 25 };
enum { TOTAL, USED, RESERVED, UTIL, MEM_UTIL, SM, SM_MAX, REASONS, TEMP, POWER, LIMIT, SLOWDOWN, ECC_U, ECC_C, RETIRED, ROWS, PENDING,
       FAILED, GEN, WIDTH, REPLAYS, MIG, KEYS };
static const char *const names[KEYS] = {"total", "used", "reserved", "util", "mem_util", "sm", "sm_max", "reasons", "temp", "power",
    "limit", "slowdown", "ecc_u", "ecc_c", "retired", "rows", "pending", "failed", "gen", "width", "replays", "mig"};

typedef int R;
typedef unsigned long long u64;
typedef struct { unsigned pid; u64 used; unsigned gi, ci; } process_t;
typedef struct { int card, instance, there, lost, hidden, dead_session, processes; u64 value[KEYS]; process_t process[MOST_PROCESSES]; } device_t;
typedef struct { int device, session; } handle_t;
typedef struct { int device, code; char function[64]; } rule_t;
typedef struct { handle_t *device; u64 type, data; unsigned gi, ci; } event_t;

static device_t devices[CARDS * (1 + INSTANCES)];
static handle_t handles[CARDS * (1 + INSTANCES)][256];
static rule_t rules[MOST_RULES];
static struct { int device; u64 xid; } pending[MOST_EVENTS];
static int rule_count, event_count, event_next, session, opened, init_code, cards, visible[CARDS], visible_count, registered[CARDS];
static int advanced, set_token;
static long call_us, step_ms;
static FILE *script;
static char ahead[256];
static struct timespec begun;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static long env(const char *name) { const char *text = getenv(name); return text ? atol(text) : 0; }
static int number(int card, int instance) { return instance < 0 ? card : CARDS + card * INSTANCES + instance; }

static long step_now(void) {
    struct timespec now;
    if (!step_ms) return advanced;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return ((now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000) / step_ms;
}

static void set_process(device_t *d, unsigned pid, long long used) {
    int i;
    for (i = 0; i < d->processes && d->process[i].pid != pid; i++) {}
    if (used == -2) {
        if (i < d->processes) d->process[i] = d->process[--d->processes];
        return;
    }
    if (i == d->processes) d->processes++;
    d->process[i] = (process_t){pid, (u64)used, 0xFFFFFFFF, 0xFFFFFFFF};
}

static void set_rule(int device, const char *function, int code) {
    int i;
    for (i = 0; i < rule_count && (rules[i].device != device || strcmp(rules[i].function, function)); i++) {}
    if (i == rule_count) rule_count++;
    rules[i].device = device;
    rules[i].code = code;
    snprintf(rules[i].function, sizeof rules[i].function, "%s", function);
}

static void set(const char *where, const char *key, long long value) {
    int card = 0, instance = -1, k, device = -1;
    if (*where != '-') {
        sscanf(where, "%d.%d", &card, &instance);
        device = number(card, instance);
        devices[device].there = 1;
        devices[device].card = card;
        devices[device].instance = instance;
    }
    device_t *d = device < 0 ? NULL : &devices[device];
    if (!strncmp(key, "fail.", 5)) set_rule(device, key + 5, (int)value);
    else if (!strncmp(key, "block.", 6)) set_rule(device, key + 6, value ? -1 : 0);
    else if (!d && !strcmp(key, "cards")) cards = (int)value;
    else if (!d && !strcmp(key, "mark")) { FILE *mark = fopen(getenv("NVML_STUB_MARK"), "w"); if (mark) fclose(mark); }
    else if (!d && !strcmp(key, "init")) init_code = (int)value;
    else if (!strncmp(key, "proc.", 5)) set_process(d, (unsigned)atol(key + 5), value);
    else if (!strcmp(key, "xid")) { pending[event_count % MOST_EVENTS].device = device; pending[event_count++ % MOST_EVENTS].xid = (u64)value; }
    else if (!strcmp(key, "lost")) { d->lost = (int)value; if (value) d->dead_session = session; }
    else if (!strcmp(key, "hidden")) d->hidden = (int)value;
    else for (k = 0; k < KEYS; k++) if (!strcmp(key, names[k])) d->value[k] = (u64)value;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("NVML_STUB_SCRIPT");
    call_us = env("NVML_STUB_CALL_US");
    step_ms = env("NVML_STUB_STEP_MS");
    clock_gettime(CLOCK_MONOTONIC, &begun);
    script = path ? fopen(path, "r") : NULL;
    if (!script) { fprintf(stderr, "stub: NVML_STUB_SCRIPT names no file\n"); abort(); }
}

static void play(void) {
    long step, now = step_now();
    char where[16], key[96];
    long long value;
    while (script) {
        if (!*ahead && !fgets(ahead, sizeof ahead, script)) { fclose(script); script = NULL; return; }
        if (sscanf(ahead, "%ld %15s %95s %lld", &step, where, key, &value) != 4) { *ahead = 0; continue; }
        if (step > now) return;
        set(where, key, value);
        *ahead = 0;
    }
}

static R rule(int device, const char *function) {
    for (int i = 0; i < rule_count; i++)
        if (!strcmp(rules[i].function, function) && (rules[i].device == device || rules[i].device < 0)) return rules[i].code;
    return SUCCESS;
}

/* What every call does first. */
static R enter(handle_t *h, const char *function) {
    R code = SUCCESS;
    if (call_us) usleep((useconds_t)call_us);
    pthread_mutex_lock(&lock);
    play();
    if (!opened) code = UNINITIALIZED;
    else if (h) {
        device_t *d = &devices[h->device], *whole = &devices[d->card];
        if (whole->lost || (whole->dead_session && h->session <= whole->dead_session)) code = LOST;
        else code = rule(h->device, function);
    } else code = rule(-1, function);
    pthread_mutex_unlock(&lock);
    while (code == -1) pause();
    return code;
}

static R number_of(handle_t *h, const char *function, int key, u64 *value) {
    R code = enter(h, function);
    if (code) return code;
    if (devices[h->device].instance >= 0) return NOT_SUPPORTED;
    *value = devices[h->device].value[key];
    return SUCCESS;
}

void stub_advance(int steps) { pthread_mutex_lock(&lock); advanced += steps; play(); pthread_mutex_unlock(&lock); }

R nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (call_us) usleep((useconds_t)call_us);
    pthread_mutex_lock(&lock);
    play();
    if (!init_code) {
        opened = 1;
        session++;
        visible_count = 0;
        for (int i = 0; i < cards; i++) if (!devices[i].hidden) visible[visible_count++] = i;
    }
    pthread_mutex_unlock(&lock);
    return init_code;
}
R nvmlShutdown(void) { opened = 0; memset(registered, 0, sizeof registered); return SUCCESS; }
const char *nvmlErrorString(R code) { return code == 999 ? "Unknown Error" : "stub error"; }
R nvmlDeviceGetCount_v2(unsigned *count) { R code = enter(NULL, "Count"); *count = (unsigned)visible_count; return code; }

static handle_t *handle_of(int device) {
    handle_t *h = &handles[device][session % 256];
    h->device = device;
    h->session = session;
    return h;
}

R nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t **h) {
    R code = enter(NULL, "HandleByIndex");
    if (code) return code;
    if (index >= (unsigned)visible_count) return INVALID;
    *h = handle_of(visible[index]);
    return SUCCESS;
}
R nvmlDeviceGetName(handle_t *h, char *text, unsigned n) { R code = enter(h, "Name"); if (!code) snprintf(text, n, "STUB GPU"); return code; }
R nvmlDeviceGetUUID(handle_t *h, char *text, unsigned n) {
    R code = enter(h, "UUID");
    device_t *d = &devices[h->device];
    if (code) return code;
    if (d->instance < 0) snprintf(text, n, "GPU-00000000-0000-0000-0000-%012d", d->card);
    else snprintf(text, n, "MIG-00000000-0000-0000-0000-%06d%06d", d->card, d->instance);
    return SUCCESS;
}
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
R nvmlDeviceGetPciInfo_v3(handle_t *h, pci_t *pci) {
    R code = enter(h, "PciInfo");
    if (code) return code;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0x3b + devices[h->device].card);
    return SUCCESS;
}

typedef struct { u64 total, free_, used; } memory_t;
typedef struct { unsigned version; u64 total, reserved, free_, used; } memory2_t;
R nvmlDeviceGetMemoryInfo(handle_t *h, memory_t *m) {
    R code = enter(h, "MemoryInfo");
    u64 *v = devices[h->device].value;
    if (!code) *m = (memory_t){v[TOTAL], v[TOTAL] - v[USED] - v[RESERVED], v[USED] + v[RESERVED]};
    return code;
}
#ifndef OLD_DRIVER
R nvmlDeviceGetMemoryInfo_v2(handle_t *h, memory2_t *m) {
    R code = enter(h, "MemoryInfo");
    u64 *v = devices[h->device].value;
    if (code) return code;
    if (m->version != ((2u << 24) | sizeof *m)) return VERSION;
    *m = (memory2_t){m->version, v[TOTAL], v[RESERVED], v[TOTAL] - v[USED] - v[RESERVED], v[USED]};
    return SUCCESS;
}
#endif
R nvmlDeviceGetUtilizationRates(handle_t *h, unsigned *rates) {
    u64 value = 0;
    R code = number_of(h, "UtilizationRates", UTIL, &value);
    if (!code) { rates[0] = (unsigned)value; rates[1] = (unsigned)devices[h->device].value[MEM_UTIL]; }
    return code;
}

#define UNSIGNED(name, key) \
    R nvmlDeviceGet##name(handle_t *h, unsigned *v) { u64 n = 0; R c = number_of(h, #name, key, &n); *v = (unsigned)n; return c; }
#define UNSIGNED_OF(name, key) \
    R nvmlDeviceGet##name(handle_t *h, int of, unsigned *v) { u64 n = 0; R c = number_of(h, #name, key, &n); (void)of; *v = (unsigned)n; return c; }
UNSIGNED(PowerUsage, POWER)
UNSIGNED(EnforcedPowerLimit, LIMIT)
UNSIGNED(CurrPcieLinkGeneration, GEN)
UNSIGNED(CurrPcieLinkWidth, WIDTH)
UNSIGNED(PcieReplayCounter, REPLAYS)
UNSIGNED_OF(ClockInfo, SM)
UNSIGNED_OF(MaxClockInfo, SM_MAX)
UNSIGNED_OF(Temperature, TEMP)
UNSIGNED_OF(TemperatureThreshold, SLOWDOWN)
R nvmlDeviceGetCurrentClocksThrottleReasons(handle_t *h, u64 *v) { return number_of(h, "ClocksReasons", REASONS, v); }
#ifndef OLD_DRIVER
R nvmlDeviceGetCurrentClocksEventReasons(handle_t *h, u64 *v) { return number_of(h, "ClocksReasons", REASONS, v); }
#endif
R nvmlDeviceGetTotalEccErrors(handle_t *h, int kind, int counter, u64 *v) {
    if (counter != 1) return INVALID; /* of the card's life */
    return number_of(h, "TotalEccErrors", kind ? ECC_U : ECC_C, v);
}
R nvmlDeviceGetRetiredPages(handle_t *h, int cause, unsigned *count, u64 *pages) {
    u64 n = 0;
    unsigned room = *count;
    R code = number_of(h, "RetiredPages", RETIRED, &n);
    if (code) return code;
    *count = cause ? (unsigned)n : 0;
    if (room < *count || (*count && !pages)) return SIZE;
    for (unsigned i = 0; i < *count; i++) pages[i] = i << 12;
    return SUCCESS;
}
R nvmlDeviceGetRemappedRows(handle_t *h, unsigned *corrected, unsigned *uncorrected, unsigned *is_pending, unsigned *failed) {
    u64 rows = 0;
    R code = number_of(h, "RemappedRows", ROWS, &rows);
    u64 *v = devices[h->device].value;
    if (!code) { *corrected = 0; *uncorrected = (unsigned)rows; *is_pending = (unsigned)v[PENDING]; *failed = (unsigned)v[FAILED]; }
    return code;
}

static R running(handle_t *h, const char *function, unsigned *count, process_t *found) {
    R code = enter(h, function);
    device_t *d = &devices[h->device];
    unsigned room = *count;
    if (code) return code;
    *count = (unsigned)d->processes;
    if (room < *count || (*count && !found)) return SIZE;
    memcpy(found, d->process, sizeof *found * *count);
    return SUCCESS;
}
R nvmlDeviceGetComputeRunningProcesses_v2(handle_t *h, unsigned *n, process_t *p) { return running(h, "Processes", n, p); }
#ifndef OLD_DRIVER
R nvmlDeviceGetComputeRunningProcesses_v3(handle_t *h, unsigned *n, process_t *p) { return running(h, "Processes", n, p); }
R nvmlDeviceGetGraphicsRunningProcesses_v3(handle_t *h, unsigned *n, process_t *p) { (void)p; *n = 0; return enter(h, "Graphics"); }

R nvmlDeviceGetMigMode(handle_t *h, unsigned *current, unsigned *next) {
    u64 mig = 0;
    R code = number_of(h, "MigMode", MIG, &mig);
    *current = *next = mig > 0;
    return code;
}
R nvmlDeviceGetMaxMigDeviceCount(handle_t *h, unsigned *count) { *count = INSTANCES; return enter(h, "MaxMigDeviceCount"); }
R nvmlDeviceGetMigDeviceHandleByIndex(handle_t *h, unsigned index, handle_t **found) {
    R code = enter(h, "MigDeviceHandleByIndex");
    int device = number(devices[h->device].card, (int)index);
    if (code) return code;
    if (!devices[device].there || devices[device].hidden) return NOT_FOUND;
    *found = handle_of(device);
    return SUCCESS;
}
R nvmlDeviceGetGpuInstanceId(handle_t *h, unsigned *id) { *id = 7 + (unsigned)devices[h->device].instance; return enter(h, "GpuInstanceId"); }
R nvmlDeviceGetComputeInstanceId(handle_t *h, unsigned *id) { *id = 0; return enter(h, "ComputeInstanceId"); }

R nvmlEventSetCreate(void **events) { R code = enter(NULL, "EventSetCreate"); *events = &set_token; return code; }
R nvmlEventSetFree(void *events) { (void)events; return SUCCESS; }
R nvmlDeviceRegisterEvents(handle_t *h, u64 types, void *events) {
    R code = enter(h, "RegisterEvents");
    (void)events;
    if (!code && types & 8) registered[devices[h->device].card] = 1;
    return code;
}
R nvmlEventSetWait_v2(void *events, event_t *event, unsigned timeout_ms) {
    R code = enter(NULL, "EventSetWait");
    unsigned poll_ms = step_ms ? (unsigned)(step_ms / 5 + 1) : 1;
    (void)events;
    for (unsigned waited = 0; !code; waited += poll_ms) {
        pthread_mutex_lock(&lock);
        play();
        while (event_next < event_count) {
            int device = pending[event_next % MOST_EVENTS].device;
            u64 xid = pending[event_next++ % MOST_EVENTS].xid;
            if (!registered[device]) continue;
            *event = (event_t){handle_of(device), 8, xid, 0xFFFFFFFF, 0xFFFFFFFF};
            pthread_mutex_unlock(&lock);
            return SUCCESS;
        }
        pthread_mutex_unlock(&lock);
        if (waited >= timeout_ms) return TIMEOUT;
        usleep(1000 * (timeout_ms - waited < poll_ms ? timeout_ms - waited : poll_ms));
    }
    return code;
}
#endif
