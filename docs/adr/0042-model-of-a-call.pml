/*
 * A call over a broker, for Spin: one caller, some servers, and messages that are lost, repeated and late.
 *
 * It checks, for every order of events:
 *   - the call has at most one outcome (assertion in `settle`), and gets one, whatever is lost (claim `ends`);
 *   - its handler runs at most once, on one of the servers (assertion in `start`);
 *   - a call that fails as not started has not run (assertion in `Caller`);
 *   - no handler starts after the deadline (assertion in `start`);
 *   - a handler whose caller has given up or is gone is stopped (claim `stops`).
 *
 * Timers count down at each tick, and are due at 0. Without DEADLINE a call has none: only leases end it. BROKEN builds in
 * one mistake, which Spin has to find; `tests/judges/test_model.py` runs all of them.
 */

#ifndef DEADLINE
#define DEADLINE 0              /* ticks; 0: none */
#endif
#ifndef BROKEN
#define BROKEN 0
#endif
#ifndef SERVERS
#define SERVERS 2
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2              /* times that a request is sent: a server that drains has not started it */
#endif
#define PATIENCE 2              /* ticks without a message, after which the other side is gone */
#define NOTHING 0               /* no token */

#define NO_MEMORY 1             /* a server forgets what it has run */
#define NO_LEASE 2              /* a caller waits for a server that is gone */
#define NO_TRANSIT 3            /* the time of a request in transit is not deducted */
#define ANY_TOKEN 4             /* a reply to an earlier attempt counts */
#define LATE_REJECTION 5        /* a server that drains rejects the repetition of a request that it runs */
#define NO_SILENCE 6            /* a server runs on for a caller that is gone */
#define FORGETS_REJECTION 7     /* a rejected request is started by its repetition, after a restart */
#define TWO_OUTCOMES 8          /* a call that has ended stays in the table */

mtype = { requested, responded, not_started, aborted, serving, waiting };

chan inbox[SERVERS] = [2] of { mtype, byte, byte };   /* event, token, time left when it was sent */
chan replies = [2] of { mtype, byte, byte };          /* event, token, server */

byte left = DEADLINE;           /* of the caller's time */
byte lease = PATIENCE;          /* of the caller's patience */
byte token = NOTHING;           /* of the latest attempt */
byte outcomes = 0;
byte runs = 0;
bool connected = true;          /* the caller */
bool cancelled = false;         /* by the user of the caller */
bool is_endless = false;        /* the handler, such as that of a subscription */

bool draining[SERVERS];
bool dead[SERVERS];
bool seen[SERVERS];             /* the server remembers the request */
byte running[SERVERS];          /* token of the request that the handler runs for */
byte silence[SERVERS];          /* of the server's patience with the caller */

/* Deliver a message, or twice, or lose it. */
inline post(channel, event, a, b) {
    if
    :: nfull(channel) -> channel ! event, a, b
    :: empty(channel) -> channel ! event, a, b; channel ! event, a, b
    :: skip
    fi
}

inline request() {
    token++;
    lease = PATIENCE;
    select(target : 0 .. SERVERS - 1);
    post(inbox[target], requested, token, left)
}

inline settle() {
    outcomes++;
    assert(outcomes <= 1)
}

#define is_open (token != NOTHING && (outcomes == 0 || BROKEN == TWO_OUTCOMES))
#define expired (DEADLINE > 0 && left == 0)
#define caller_is_due (outcomes == 0 && (expired || (lease == 0 && BROKEN != NO_LEASE)))
#define server_is_due(me) (running[me] != NOTHING && (expired || (silence[me] == 0 && BROKEN != NO_SILENCE)))

active proctype Caller() {
    mtype event;
    byte given, server, target;

    atomic { request() }
end:
    do
    :: atomic { nempty(replies) ->
        replies ? event, given, server;
        if
        :: !connected -> skip
        :: connected && is_open && (given == token || BROKEN == ANY_TOKEN) ->
            if
            :: event == responded || event == aborted -> settle()
            :: event == serving -> lease = PATIENCE; post(inbox[server], waiting, given, 0)
            :: event == not_started ->
                if
                :: token < ATTEMPTS && !expired -> request()
                :: else -> settle(); assert(runs == 0)
                fi
            fi
        :: else ->
            if
            :: event == serving -> post(inbox[server], aborted, given, 0)
            :: else -> skip
            fi
        fi;
        event = 0; given = 0; server = 0 }
    :: atomic { caller_is_due -> settle(); post(inbox[target], aborted, token, 0) }
    :: atomic { outcomes == 0 && !connected -> settle() }
    :: atomic { outcomes == 0 && cancelled -> settle(); post(inbox[target], aborted, token, 0) }
    od
}

inline start() {
    if
    :: seen[me] && BROKEN != NO_MEMORY -> skip
    :: else ->
        if
        :: expired && !(BROKEN == NO_TRANSIT && stated > 0) -> skip
        :: else ->
            runs++;
            assert(runs <= 1);
            assert(!expired);
            running[me] = given;
            seen[me] = true;
            silence[me] = PATIENCE
        fi
    fi
}

proctype Server(byte me) {
    mtype event;
    byte given, stated;

end:
    do
    :: atomic { nempty(inbox[me]) ->
        inbox[me] ? event, given, stated;
        if
        :: dead[me] -> skip
        :: !dead[me] && event == requested ->
            if
            :: draining[me] && (!seen[me] || BROKEN == LATE_REJECTION) ->
                seen[me] = (BROKEN != FORGETS_REJECTION);
                post(replies, not_started, given, me)
            :: else -> start()
            fi
        :: !dead[me] && event == aborted -> running[me] = (running[me] == given -> NOTHING : running[me])
        :: !dead[me] && event == waiting -> silence[me] = PATIENCE
        fi;
        event = 0; given = 0; stated = 0 }
    :: atomic { running[me] != NOTHING && !is_endless -> post(replies, responded, running[me], me); running[me] = NOTHING }
    :: atomic { server_is_due(me) -> post(replies, aborted, running[me], me); running[me] = NOTHING }
    od
}

/* A tick of the clock, once nothing is due, and the heartbeat of the servers. */
active proctype Clock() {
    byte each;

    do
    :: atomic { !caller_is_due && !server_is_due(0) && !server_is_due(1) ->
        left = (left > 0 -> left - 1 : 0);
        lease = (lease > 0 -> lease - 1 : 0);
        for (each : 0 .. SERVERS - 1) {
            silence[each] = (silence[each] > 0 -> silence[each] - 1 : 0);
            if
            :: running[each] != NOTHING -> post(replies, serving, running[each], each)
            :: else -> skip
            fi
        };
        each = 0 }
    od
}

/* What may happen at any time, once or never. */
active proctype Drain() {
    if :: draining[0] = true; if :: draining[0] = false :: skip fi :: skip fi
}
active proctype Crash() {
    if :: atomic { dead[0] = true; running[0] = NOTHING } :: skip fi
}
active proctype Disconnect() {
    if :: connected = false :: skip fi
}
active proctype Cancel() {
    if :: cancelled = true :: skip fi
}
active proctype Endless() {
    if :: is_endless = true :: skip fi
}
active proctype Servers() {
    byte each;

    atomic { for (each : 0 .. SERVERS - 1) { run Server(each) }; each = 0 }
}

#define is_running (running[0] != NOTHING || running[1] != NOTHING)

/* A handler may run for ever, such as a subscription; else there is an outcome. */
ltl ends { <> (outcomes == 1) || (DEADLINE == 0 && []<> is_running) }
ltl stops { [] ((outcomes == 1) -> <> !is_running) }
