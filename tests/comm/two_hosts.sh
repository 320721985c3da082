#!/usr/bin/env bash
# tests/comm/two_hosts.sh: the suite of comm/ and a training run on two machines, as far as one machine can play two: two network
# namespaces with host names of their own, joined by a virtual cable. Needs root, iproute2 and a build; CTest does not run it.
#   tests/comm/two_hosts.sh [BUILD]
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
build=$(cd -- "${1:-$root/build}" && pwd -P)
[[ $EUID -eq 0 ]] || { echo "two_hosts.sh: network namespaces need root" >&2; exit 2; }
command -v ip >/dev/null || { echo "two_hosts.sh: ip is missing; apt-get install iproute2" >&2; exit 2; }
for program in keel tests/comm/comm_ranks; do
    [[ -x "$build/$program" ]] || { echo "two_hosts.sh: $build/$program is missing; cmake --build '$build'" >&2; exit 2; }
done

work=$(mktemp -d)
leave() {
    ip netns del keel-one 2>/dev/null || true
    ip netns del keel-two 2>/dev/null || true
    rm -rf "$work"
}
trap leave EXIT
ip netns add keel-one
ip netns add keel-two
ip link add keel0 netns keel-one type veth peer name keel0 netns keel-two
for host in one two; do
    ip -n keel-$host addr add "10.77.0.$([[ $host = one ]] && echo 1 || echo 2)/24" dev keel0
    ip -n keel-$host link set lo up
    ip -n keel-$host link set keel0 up
done

# In the place of ssh: `enter HOST COMMAND…` runs it in that namespace under that host name.
cat >"$work/enter" <<'SCRIPT'
#!/usr/bin/env bash
case $1 in 10.77.0.1 | one) host=one ;; *) host=two ;; esac
shift
export name=$host command="$*"
exec ip netns exec keel-$host unshare --uts sh -c 'hostname "$name"; exec sh -c "$command"'
SCRIPT
chmod +x "$work/enter"

# mpirun stands on machine one.
on_two_hosts() {
    "$work/enter" one mpirun --allow-run-as-root --bind-to none --host 10.77.0.1:2,10.77.0.2:2 --mca plm_rsh_agent "$work/enter" \
        --mca btl self,tcp --mca btl_tcp_if_include keel0 --mca oob_tcp_if_include keel0 --mca pml ob1 -np 4 "$@"
}

echo "== the suite of comm/ on 4 ranks"
on_two_hosts "$build/tests/comm/comm_ranks" suite

echo "== a run on 4 ranks, and the same on threads"
for i in {1..400}; do echo "In the beginning was the word, and word $i was counted."; done >"$work/a.txt"
"$build/keel" tokenizer train --vocab 260 --out "$work/tok" "$work/a.txt" >/dev/null
"$build/keel" tokenize --tokenizer "$work/tok" --out "$work/a.tok" "$work/a.txt" >/dev/null
run=(train --model.hidden 32 --model.layers 2 --model.heads 4 --model.ffn 64 --data.seq_len 32 --data.tokenizer "$work/tok"
     --data.train "$work/a.tok" --train.steps 5 --train.global_batch 8 --train.micro_batch 1 --run.threads 1
     --parallel.tp 2 --parallel.dp 2)
on_two_hosts "$build/keel" "${run[@]}" --run.dir "$work/machines"
"$build/keel" "${run[@]}" --run.dir "$work/threads" >/dev/null
losses() { grep -o '"loss":[^,]*' "$1/log.jsonl"; }
cmp <(losses "$work/machines") <(losses "$work/threads") && echo "equal losses, digit by digit"
