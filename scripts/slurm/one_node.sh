#!/bin/bash
# SLURM cluster with a single node on this machine, for trying and testing sweeps. Debian and Ubuntu; run as root:
#   one_node.sh install     install the packages slurm-wlm and munge
#   one_node.sh configure   write slurm.conf for the cores and the memory of this machine
#   one_node.sh start       start the daemons, after configuration if necessary, and run a test job
#   one_node.sh status      print nodes and jobs; exit code 1 if the cluster is down
#   one_node.sh stop        stop the daemons
# All commands are idempotent. The daemons listen only on the loopback interface. systemd is not required.
#
# Settings, read by `configure`:
#   LLMRL_SLURM_MAX_ARRAY_SIZE  (1001)  largest job array index + 1
#   LLMRL_SLURM_KILL_WAIT       (30)    seconds between SIGTERM and SIGKILL at a time limit or an scancel
#   LLMRL_SLURM_GRACE_TIME      (30)    seconds between the warning and the preemption of a job in `scavenge`
#   LLMRL_SLURM_REQUEUE_DELAY   (10)    seconds until a requeued job may start again, >= 5
# Read by `start`:
#   LLMRL_SLURM_START_TIMEOUT   (60)    maximum time to wait for the node and for the test job, seconds
# SLURM_CONF, which SLURM commands also read, sets the path of the configuration (default: /etc/slurm/slurm.conf).

set -euo pipefail
shopt -s inherit_errexit
umask 022
PATH=$PATH:/usr/sbin:/sbin

CONF=${SLURM_CONF:-/etc/slurm/slurm.conf}
MARKER="# Written by llmrl's one_node.sh."
STATE=/var/lib/slurm-llmrl
RUN=/run/slurm-llmrl
LOGS=/var/log/slurm
START_TIMEOUT=${LLMRL_SLURM_START_TIMEOUT:-60}

log_message() { echo "one_node.sh: $*"; }
fail() {
    echo "one_node.sh: error: $*" >&2
    exit 1
}

need_root() { [ "$(id -u)" -eq 0 ] || fail "'$1' needs root, try: sudo $0 $1"; }

missing_command() {
    local command
    for command in munged slurmctld slurmd sinfo ss; do
        command -v "$command" >/dev/null || { echo "$command" && return; }
    done
}
need_packages() { [ -z "$(missing_command)" ] || fail "$(missing_command) is not installed, run: sudo $0 install"; }

# A configuration without the marker belongs to another cluster, which is never overwritten, started or stopped.
is_own_config() { [ -f "$CONF" ] && grep -qxF "$MARKER" "$CONF"; }
reject_foreign_config() {
    if [ -e "$CONF" ] && ! is_own_config; then
        fail "$CONF was not written by this script, and is not overwritten; move it to create a one-node cluster"
    fi
}

check_integer() { # name, value, minimum
    [[ $2 =~ ^[0-9]+$ ]] && [ "$2" -ge "$3" ] || fail "$1=$2: a whole number >= $3 is needed"
    echo "$2"
}

# Print the loopback address to which the host name resolves. The daemons bind to this address.
loopback_address() {
    local host=$1 address
    address=$(getent ahostsv4 "$host" | awk 'NR == 1 {print $1}') || true
    case $address in
    127.*) echo "$address" ;;
    *) fail "the host name $host resolves to '${address}', so SLURM would be reachable from other machines; assign a loopback" \
        "address: echo '127.0.1.1 $host' >> /etc/hosts (in a container: docker run --hostname localhost)" ;;
    esac
}

install_packages() {
    if [ -z "$(missing_command)" ]; then
        log_message "slurm-wlm and munge are installed: $(slurmd -V)"
    else
        command -v apt-get >/dev/null || fail "apt-get is missing: only Debian and Ubuntu are supported"
        # The package list may be missing or outdated.
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q && apt-get install -q -y --no-install-recommends slurm-wlm munge iproute2 ||
            fail "apt-get could not install slurm-wlm and munge, see above"
    fi
    # The systemd units must not start the same daemons a second time.
    if [ -d /run/systemd/system ]; then
        systemctl disable --now slurmctld slurmd
    fi
}

print_configuration() {
    local host address cpus memory reserved array_size kill_wait grace requeue
    host=$(hostname -s)
    address=$(loopback_address "$host")
    cpus=$(env --unset=OMP_NUM_THREADS --unset=OMP_THREAD_LIMIT nproc) # these variables limit nproc
    memory=$(awk '/^MemTotal:/ {print int($2 / 1024)}' /proc/meminfo)
    reserved=$((memory / 10 > 512 ? memory / 10 : 512)) # memory of the system and the daemons, MB
    memory=$((memory - reserved))
    array_size=$(check_integer LLMRL_SLURM_MAX_ARRAY_SIZE "${LLMRL_SLURM_MAX_ARRAY_SIZE:-1001}" 2)
    kill_wait=$(check_integer LLMRL_SLURM_KILL_WAIT "${LLMRL_SLURM_KILL_WAIT:-30}" 1)
    grace=$(check_integer LLMRL_SLURM_GRACE_TIME "${LLMRL_SLURM_GRACE_TIME:-30}" 0)
    requeue=$(check_integer LLMRL_SLURM_REQUEUE_DELAY "${LLMRL_SLURM_REQUEUE_DELAY:-10}" 5)
    cat <<CONF
$MARKER
ClusterName=llmrl
SlurmctldHost=$host($address)
# Bind to the address of the host name, which is a loopback address, instead of all addresses.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=slurm
AuthType=auth/munge
# A requeued job waits until its previous credential has expired, which takes two minutes by default.
AuthInfo=cred_expire=$requeue
StateSaveLocation=$STATE/ctld
SlurmdSpoolDir=$STATE/d
SlurmctldPidFile=$RUN/slurmctld.pid
SlurmdPidFile=$RUN/slurmd.pid
SlurmctldLogFile=$LOGS/slurmctld.log
SlurmdLogFile=$LOGS/slurmd.log
MailProg=/bin/true

# Processes without cgroups, which may be unavailable in containers.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none

# Each job is allocated the requested CPUs and memory. The default memory is proportional to the CPUs.
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=$((memory / cpus))
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
MaxArraySize=$array_size
KillWait=$kill_wait
KillOnBadExit=1
MinJobAge=300
JobRequeue=1
# A node accepts jobs again after it was down, or after its daemon was killed and restarted.
ReturnToService=2

# Jobs in main preempt jobs in scavenge, which receive the signal of their --signal option and are requeued.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal

NodeName=$host NodeAddr=$address CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$host Default=YES PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
PartitionName=scavenge Nodes=$host PriorityTier=1 GraceTime=$grace MaxTime=INFINITE State=UP
CONF
}

# Since 23.02, slurmd configures cgroups unless they are disabled. Earlier versions do not have this option.
write_cgroup_conf() {
    local path version
    path=$(dirname "$CONF")/cgroup.conf
    version=$(slurmd -V | grep --only-matching '[0-9]*\.[0-9]*' | head -n 1)
    if [ ! -e "$path" ] && [ "$(printf '%s\n' 23.02 "$version" | sort --version-sort | head -n 1)" = 23.02 ]; then
        printf '%s\n' "$MARKER" CgroupPlugin=disabled >"$path"
        log_message "wrote $path"
    fi
}

configure() {
    local text
    reject_foreign_config
    text=$(print_configuration)
    if [ -f "$CONF" ] && [ "$text" = "$(cat "$CONF")" ]; then
        log_message "$CONF is up to date"
        return
    fi
    mkdir -p "$(dirname "$CONF")"
    write_cgroup_conf
    echo "$text" >"$CONF.new"
    mv "$CONF.new" "$CONF"
    log_message "wrote $CONF"
    if is_running slurmctld; then
        log_message "the running cluster uses the previous settings until: $0 stop && $0 start"
    fi
}

get_pid() { cat "$RUN/$1.pid" 2>/dev/null || true; }

# Return whether a daemon that this script started is running. A PID file remains after kill -9, and its PID may have been
# reused, so the command line is checked. The command line of a zombie process is empty.
is_running() {
    local pid
    pid=$(get_pid "$1")
    [ -n "$pid" ] && [[ $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") == *"$1 "* ]]
}

is_munge_up() { munge --no-input 2>/dev/null | unmunge >/dev/null 2>&1; }
is_controller_up() { [[ $(scontrol ping 2>/dev/null) == *"is UP"* ]]; }
node_state() { sinfo --noheader --Node --partition=main --format=%T 2>/dev/null || true; }
is_node_ready() { [[ $(node_state) =~ ^(idle|mixed|allocated|completing)$ ]]; }
# slurmctld detects only after five minutes that slurmd has exited, so the process of slurmd is also checked.
is_cluster_up() { is_munge_up && is_controller_up && is_running slurmd && is_node_ready; }

wait_for() { # seconds, command
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
}

fail_with_logs() {
    local log
    for log in /var/log/munge/munged.log "$LOGS/slurmctld.log" "$LOGS/slurmd.log"; do
        if [ -f "$log" ]; then
            echo "--- last lines of $log" >&2
            tail -n 15 "$log" >&2
        fi
    done
    fail "$@"
}

start_munged() {
    # A running munged, such as a system service, is used and never stopped.
    if is_munge_up; then return; fi
    # munged requires permissions that are at most these.
    install -d -o munge -g munge -m 0700 /etc/munge /var/log/munge
    install -d -o munge -g munge -m 0711 /var/lib/munge
    install -d -o munge -g munge -m 0755 /run/munge "$RUN/munge"
    if [ ! -s /etc/munge/munge.key ]; then
        install -o munge -g munge -m 0400 /dev/null /etc/munge/munge.key
        head --bytes=1024 /dev/urandom >/etc/munge/munge.key
    fi
    # --force: replaces the socket of a killed munged
    setpriv --reuid=munge --regid=munge --init-groups munged --force --pid-file="$RUN/munge/munged.pid" ||
        fail_with_logs "munged did not start"
    ln -sf munge/munged.pid "$RUN/munged.pid"
    wait_for 10 is_munge_up || fail_with_logs "munged does not respond"
}

start_daemon() { # name
    is_running "$1" || "$1" -f "$CONF" || fail_with_logs "$1 did not start"
}

reject_open_ports() {
    local open
    open=$(ss --listening --tcp --numeric --processes --no-header |
        awk '/"(slurmctld|slurmd)"/ && $4 !~ /^127\./ {print $4}')
    if [ -n "$open" ]; then
        stop
        fail "SLURM listened on $open, which is not a loopback address; stopped it"
    fi
}

start() {
    reject_foreign_config
    [ -f "$CONF" ] || configure
    mkdir -p "$RUN"
    # If two starts run concurrently, the second waits until the cluster is up.
    exec 9>"$RUN/lock"
    flock 9
    if is_cluster_up; then
        log_message "the cluster is already up"
        return
    fi
    install -d -o slurm -g slurm -m 0755 "$LOGS" "$STATE" "$STATE/ctld"
    install -d -m 0755 "$STATE/d"
    # File descriptor 9 is closed, so that the daemons do not inherit the lock.
    start_munged 9>&-
    start_daemon slurmctld 9>&-
    wait_for "$START_TIMEOUT" is_controller_up || fail_with_logs "slurmctld did not respond within $START_TIMEOUT s"
    start_daemon slurmd 9>&-
    reject_open_ports
    wait_for "$START_TIMEOUT" is_node_ready ||
        fail_with_logs "the node was not ready within $START_TIMEOUT s, its state is '$(node_state)'"
    # If the node is busy with existing jobs, they show that jobs run, and the test job is skipped.
    if [ "$(node_state)" = idle ]; then
        # The environment is cleared, because SLURM_* and SLURMD_* variables are options of srun.
        timeout "$START_TIMEOUT" env --ignore-environment PATH="$PATH" SLURM_CONF="$CONF" \
            srun --chdir=/ --partition=main --ntasks=1 --time=1 --job-name=one_node_test true 9>&- ||
            fail_with_logs "a test job did not finish within $START_TIMEOUT s"
    fi
    log_message "the cluster is up: partitions main and scavenge, configuration $CONF"
}

stop_daemon() { # name
    local pid
    if ! is_running "$1"; then return; fi
    pid=$(get_pid "$1")
    kill "$pid"
    wait_for 20 eval '! is_running '"$1" || fail "$1 (process $pid) did not exit, see its log in $LOGS"
    log_message "stopped $1"
}

stop() {
    local jobs
    reject_foreign_config
    jobs=$(squeue --noheader --states=RUNNING 2>/dev/null | wc -l) || true
    if is_running slurmctld && [ "$jobs" -gt 0 ]; then
        log_message "$jobs jobs keep running without SLURM, which manages them again after the next start; scancel cancels jobs"
    fi
    stop_daemon slurmd
    stop_daemon slurmctld
    stop_daemon munged
}

status() {
    reject_foreign_config
    is_cluster_up || fail "the cluster is down (munged $(format_state is_munge_up), slurmctld $(format_state is_controller_up)," \
        "slurmd $(format_state is_running slurmd), node '$(node_state)'), start it with: sudo $0 start"
    sinfo
    squeue
}
format_state() { if "$@"; then echo up; else echo down; fi; }

case ${1:-} in
install)
    need_root install
    install_packages
    ;;
configure | start | stop)
    need_root "$1"
    need_packages
    "$1"
    ;;
status)
    need_packages
    status
    ;;
*)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    [ "${1:-}" = --help ] || exit 2
    ;;
esac
