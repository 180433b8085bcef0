#!/bin/sh
# What an agent does with a repository: clone, reproduce, patch, test, push.
set -eu
here=$1
work=$(mktemp -d)
export GIT_CONFIG_GLOBAL="$work/gitconfig"
git config --global user.name "An Agent"
git config --global user.email agent@example.com
git config --global init.defaultBranch main
git config --global advice.detachedHead false

cp -r "$here/project" "$work/origin.src"
git -C "$work/origin.src" init -q
git -C "$work/origin.src" add .
git -C "$work/origin.src" commit -qm "slug: names for URLs"
git clone -q --bare "$work/origin.src" "$work/origin.git"

git clone -q "$work/origin.git" "$work/clone"
cd "$work/clone"
if python3 -m unittest -q 2>test.log; then
	echo "the tests pass before the patch: nothing to fix"
	exit 1
fi
echo "before: $(tail -n 1 test.log)"
rm test.log

git am -q "$here/fix.patch"
python3 -m unittest -q 2>test.log || { cat test.log; exit 1; }
echo "after: $(tail -n 1 test.log)"
rm test.log

git push -q origin HEAD:fix
echo "pushed: $(git -C "$work/origin.git" log -1 --format=%s fix)"
