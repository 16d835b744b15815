#!/bin/sh
# In the virtual machine: run the tests as root and as an ordinary user, each in a cgroup that is delegated to them.
project=$1
python=$2
cd "$project" || exit
# What is not needed takes long to import on an emulated processor.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

# The interpreter and the project may lie in somebody's home. Only the machine's own layer is changed.
for path in "$project" "$("$python" -c 'import sys; print(sys.base_prefix)')"; do
	while [ "$path" != / ]; do
		chmod o+rx "$path"
		path=$(dirname "$path")
	done
done

run_as() {
	cgroup=/sys/fs/cgroup/tests-$1
	mkdir "$cgroup"
	chown "$1" "$cgroup" "$cgroup/cgroup.procs" "$cgroup/cgroup.subtree_control" "$cgroup/cgroup.threads"
	{
		sh -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' sh "$cgroup" \
			setpriv --reuid "$1" --regid "$1" --clear-groups \
			"$python" -m pytest -vv -p pytest_asyncio.plugin -p pytest_timeout -p no:cacheprovider --noconftest \
			--tb short --timeout 300 tests/tools/cgroups 2>&1
		echo "ended with $?"
	} | sed -u "s/^/user $1: /"
}

echo "+memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
run_as 0 &
run_as 1000 &
wait
echo o >/proc/sysrq-trigger
sleep 60
