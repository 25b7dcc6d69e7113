#!/bin/bash
# A SLURM of one node, on this machine alone, to try sweeps and to test them. Debian and Ubuntu; run as root:
#   one_node.sh install     the packages slurm-wlm and munge
#   one_node.sh configure   write slurm.conf for this machine's cores and memory
#   one_node.sh start       start the daemons (configures first where that has not been done) and run a job
#   one_node.sh status      nodes and jobs; exit status 1 where the cluster is down
#   one_node.sh stop        end the daemons
# Every command may be repeated. The daemons listen on the loopback interface only. With or without systemd.
#
# Settings, read by `configure`:
#   LLMRL_SLURM_MAX_ARRAY_SIZE  (1001)  largest job array index + 1
#   LLMRL_SLURM_KILL_WAIT       (30)    seconds between SIGTERM and SIGKILL at a time limit or an scancel
#   LLMRL_SLURM_GRACE_TIME      (30)    seconds that a preempted job of the partition `scavenge` has to save
#   LLMRL_SLURM_REQUEUE_DELAY   (10)    seconds until a requeued job may start again, >= 5
# Read by `start`:
#   LLMRL_SLURM_START_TIMEOUT   (60)    seconds to wait for the node and for the first job
# SLURM_CONF, which SLURM's own commands know too, names another configuration file than /etc/slurm/slurm.conf.

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

say() { echo "one_node.sh: $*"; }
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

# A configuration that somebody else wrote belongs to another cluster: never overwritten, never started, never stopped.
ours() { [ -f "$CONF" ] && grep -qxF "$MARKER" "$CONF"; }
refuse_foreign() {
    if [ -e "$CONF" ] && ! ours; then
        fail "$CONF was not written by this script and stays as it is; move it away to have a one-node cluster here"
    fi
}

whole_number() { # name, value, least
    [[ $2 =~ ^[0-9]+$ ]] && [ "$2" -ge "$3" ] || fail "$1=$2: a whole number >= $3 is needed"
    echo "$2"
}

# The loopback address that this machine's name stands for. The daemons bind to what their host name resolves to.
loopback_address() {
    local host=$1 address
    address=$(getent ahostsv4 "$host" | awk 'NR == 1 {print $1}') || true
    case $address in
    127.*) echo "$address" ;;
    *) fail "the host name $host resolves to '${address}', so SLURM would be reachable from outside; give it a loopback" \
        "address: echo '127.0.1.1 $host' >> /etc/hosts (in a container: docker run --hostname localhost)" ;;
    esac
}

install_packages() {
    if [ -z "$(missing_command)" ]; then
        say "slurm-wlm and munge are installed: $(slurmd -V)"
    else
        command -v apt-get >/dev/null || fail "apt-get is missing: only Debian and Ubuntu are supported"
        # Without a list of packages apt finds nothing; an existing list may be too old to download from.
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q && apt-get install -q -y --no-install-recommends slurm-wlm munge iproute2 ||
            fail "apt-get could not install slurm-wlm and munge, see above"
    fi
    # Where systemd is at work, its own units must not start the same daemons a second time.
    if [ -d /run/systemd/system ]; then
        systemctl disable --now slurmctld slurmd
    fi
}

configuration() {
    local host address cpus memory kept array_size kill_wait grace requeue
    host=$(hostname -s)
    address=$(loopback_address "$host")
    cpus=$(env --unset=OMP_NUM_THREADS --unset=OMP_THREAD_LIMIT nproc) # which limit what nproc says
    memory=$(awk '/^MemTotal:/ {print int($2 / 1024)}' /proc/meminfo)
    kept=$((memory / 10 > 512 ? memory / 10 : 512)) # for the system and the daemons
    memory=$((memory - kept))
    array_size=$(whole_number LLMRL_SLURM_MAX_ARRAY_SIZE "${LLMRL_SLURM_MAX_ARRAY_SIZE:-1001}" 2)
    kill_wait=$(whole_number LLMRL_SLURM_KILL_WAIT "${LLMRL_SLURM_KILL_WAIT:-30}" 1)
    grace=$(whole_number LLMRL_SLURM_GRACE_TIME "${LLMRL_SLURM_GRACE_TIME:-30}" 0)
    requeue=$(whole_number LLMRL_SLURM_REQUEUE_DELAY "${LLMRL_SLURM_REQUEUE_DELAY:-10}" 5)
    cat <<CONF
$MARKER
ClusterName=llmrl
SlurmctldHost=$host($address)
# Bind to the address of this host's name, which is a loopback address, instead of to every address.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=slurm
AuthType=auth/munge
# A requeued job waits until its old credential has expired: two minutes by default.
AuthInfo=cred_expire=$requeue
StateSaveLocation=$STATE/ctld
SlurmdSpoolDir=$STATE/d
SlurmctldPidFile=$RUN/slurmctld.pid
SlurmdPidFile=$RUN/slurmd.pid
SlurmctldLogFile=$LOGS/slurmctld.log
SlurmdLogFile=$LOGS/slurmd.log
MailProg=/bin/true

# Plain processes: no cgroups, which a container may not have.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none

# Each job gets the CPUs and the memory that it asks for, and its share of memory if it asks for none.
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=$((memory / cpus))
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
MaxArraySize=$array_size
KillWait=$kill_wait
KillOnBadExit=1
MinJobAge=300
JobRequeue=1
# A node that was down, or that came back after its daemon was killed, takes jobs again.
ReturnToService=2

# A job of main takes the place of jobs of scavenge, which are warned with their own --signal and put back into the queue.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal

NodeName=$host NodeAddr=$address CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$host Default=YES PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
PartitionName=scavenge Nodes=$host PriorityTier=1 GraceTime=$grace MaxTime=INFINITE State=UP
CONF
}

# From 23.02 on slurmd sets cgroups up although nothing here uses them, unless it is told not to; before, it cannot be told.
write_cgroup_conf() {
    local path version
    path=$(dirname "$CONF")/cgroup.conf
    version=$(slurmd -V | grep --only-matching '[0-9]*\.[0-9]*' | head -n 1)
    if [ ! -e "$path" ] && [ "$(printf '%s\n' 23.02 "$version" | sort --version-sort | head -n 1)" = 23.02 ]; then
        printf '%s\n' "$MARKER" CgroupPlugin=disabled >"$path"
        say "wrote $path"
    fi
}

configure() {
    local text
    refuse_foreign
    text=$(configuration)
    if [ -f "$CONF" ] && [ "$text" = "$(cat "$CONF")" ]; then
        say "$CONF is up to date"
        return
    fi
    mkdir -p "$(dirname "$CONF")"
    write_cgroup_conf
    echo "$text" >"$CONF.new"
    mv "$CONF.new" "$CONF"
    say "wrote $CONF"
    if running slurmctld; then
        say "the running cluster has the old settings until: $0 stop && $0 start"
    fi
}

pid_of() { cat "$RUN/$1.pid" 2>/dev/null || true; }

# Whether a daemon that this script started is alive. A pid file outlives a kill -9, and its number may be another's by now;
# the command line of a dead process that nobody waited for is empty.
running() {
    local pid
    pid=$(pid_of "$1")
    [ -n "$pid" ] && [[ $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") == *"$1 "* ]]
}

munge_answers() { munge --no-input 2>/dev/null | unmunge >/dev/null 2>&1; }
controller_answers() { [[ $(scontrol ping 2>/dev/null) == *"is UP"* ]]; }
node_state() { sinfo --noheader --Node --partition=main --format=%T 2>/dev/null || true; }
node_ready() { [[ $(node_state) =~ ^(idle|mixed|allocated|completing)$ ]]; }
# slurmctld takes five minutes to notice that slurmd is gone, hence its process is looked at too.
up() { munge_answers && controller_answers && running slurmd && node_ready; }

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
            echo "--- the end of $log" >&2
            tail -n 15 "$log" >&2
        fi
    done
    fail "$@"
}

start_munged() {
    # A munged that answers, such as a service of the system, is used and never stopped.
    if munge_answers; then return; fi
    # munged refuses to start with wider permissions than these.
    install -d -o munge -g munge -m 0700 /etc/munge /var/log/munge
    install -d -o munge -g munge -m 0711 /var/lib/munge
    install -d -o munge -g munge -m 0755 /run/munge "$RUN/munge"
    if [ ! -s /etc/munge/munge.key ]; then
        install -o munge -g munge -m 0400 /dev/null /etc/munge/munge.key
        head --bytes=1024 /dev/urandom >/etc/munge/munge.key
    fi
    # --force: over the socket that a killed munged has left
    setpriv --reuid=munge --regid=munge --init-groups munged --force --pid-file="$RUN/munge/munged.pid" ||
        fail_with_logs "munged did not start"
    ln -sf munge/munged.pid "$RUN/munged.pid"
    wait_for 10 munge_answers || fail_with_logs "munged does not answer"
}

start_daemon() { # name
    running "$1" || "$1" -f "$CONF" || fail_with_logs "$1 did not start"
}

refuse_open_ports() {
    local open
    open=$(ss --listening --tcp --numeric --processes --no-header |
        awk '/"(slurmctld|slurmd)"/ && $4 !~ /^127\./ {print $4}')
    if [ -n "$open" ]; then
        stop
        fail "SLURM listened on $open, which is not a loopback address; stopped it"
    fi
}

start() {
    refuse_foreign
    [ -f "$CONF" ] || configure
    mkdir -p "$RUN"
    # Two starts at the same time: the second waits, then finds the cluster up.
    exec 9>"$RUN/lock"
    flock 9
    if up; then
        say "the cluster is up already"
        return
    fi
    install -d -o slurm -g slurm -m 0755 "$LOGS" "$STATE" "$STATE/ctld"
    install -d -m 0755 "$STATE/d"
    # The daemons must not inherit the lock.
    start_munged 9>&-
    start_daemon slurmctld 9>&-
    wait_for "$START_TIMEOUT" controller_answers || fail_with_logs "slurmctld did not answer within $START_TIMEOUT s"
    start_daemon slurmd 9>&-
    refuse_open_ports
    wait_for "$START_TIMEOUT" node_ready ||
        fail_with_logs "the node was not ready within $START_TIMEOUT s, its state is '$(node_state)'"
    # Jobs of an earlier time may fill the node; then they are the proof that jobs run.
    if [ "$(node_state)" = idle ]; then
        # Without the caller's environment, whose SLURM_* and SLURMD_* variables are options of srun.
        timeout "$START_TIMEOUT" env --ignore-environment PATH="$PATH" SLURM_CONF="$CONF" \
            srun --chdir=/ --partition=main --ntasks=1 --time=1 --job-name=one_node_test true 9>&- ||
            fail_with_logs "a test job did not finish within $START_TIMEOUT s"
    fi
    say "the cluster is up: partitions main and scavenge, configuration $CONF"
}

stop_daemon() { # name
    local pid
    if ! running "$1"; then return; fi
    pid=$(pid_of "$1")
    kill "$pid"
    wait_for 20 eval '! running '"$1" || fail "$1 (process $pid) does not end, look at its log in $LOGS"
    say "stopped $1"
}

stop() {
    local jobs
    refuse_foreign
    jobs=$(squeue --noheader --states=RUNNING 2>/dev/null | wc -l) || true
    if running slurmctld && [ "$jobs" -gt 0 ]; then
        say "$jobs running jobs go on without SLURM, which finds them again at the next start; scancel ends jobs"
    fi
    stop_daemon slurmd
    stop_daemon slurmctld
    stop_daemon munged
}

status() {
    refuse_foreign
    up || fail "the cluster is down (munged $(answer munge_answers), slurmctld $(answer controller_answers)," \
        "slurmd $(answer running slurmd), node '$(node_state)'), start it with: sudo $0 start"
    sinfo
    squeue
}
answer() { if "$@"; then echo up; else echo down; fi; }

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
