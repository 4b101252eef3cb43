# What the comments of a page may use.

# Whether a broker's /health says that it is well, as master or standby.
healthy() {
    local host="${1:-127.0.0.1:8161}"
    (exec 3<>"/dev/tcp/${host%:*}/${host##*:}" && printf 'GET /health HTTP/1.0\r\nHost: %s\r\n\r\n' "$host" >&3 &&
        read -r line <&3 && [[ "$line" == *" 200 "* ]]) 2>/dev/null
}

# The same, and it is the master.
master() {
    local host="${1:-127.0.0.1:8161}"
    (exec 3<>"/dev/tcp/${host%:*}/${host##*:}" && printf 'GET /health/ready HTTP/1.0\r\nHost: %s\r\n\r\n' "$host" >&3 &&
        read -r line <&3 && [[ "$line" == *" 200 "* ]]) 2>/dev/null
}

# `wait_for COMMAND`: until it succeeds. Whoever waits for ever is ended by the test.
wait_for() { until "$@"; do sleep 0.05; done; }

# Ctrl-C in every terminal where a broker runs; until they have ended.
stop() {
    local each
    for each in /proc/[0-9]*; do
        if [[ "$(tr '\0' ' ' 2>/dev/null <"$each/cmdline")" == *"-m tandemmq run"* ]]; then kill -INT "${each#/proc/}"; fi
    done
    wait
}

# A store in a directory with some messages of the queues `orders` and `ORDERS.EU`, of which a few were acknowledged.
store() {
    tandemmq run --data "$1" --name before --openwire off >/dev/null 2>&1 &
    wait_for master
    tandemmq send orders "a message" --count 20 >/dev/null
    tandemmq send ORDERS.EU "a message" --count 5 >/dev/null
    tandemmq receive orders --count 3 >/dev/null
    stop
}
