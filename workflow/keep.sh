#!/bin/sh
# Hands folders to DVC, by a .dvc file beside each: `sh workflow/keep.sh FOLDER ...`, paths from the project's folder.
# DVC takes nothing from behind a link: such a folder is left out, and a line says so.
set -eu
root=$(pwd -P)
for folder in "$@"; do
    shift
    if [ ! -d "$folder" ]; then
        echo "$folder: no such folder" >&2
        exit 2
    elif [ "$(cd "$folder" && pwd -P)" = "$root/$folder" ]; then
        set -- "$@" "$folder"
    else
        echo "$folder: DVC takes nothing from behind a link, and leaves it out; to push it, have a folder in the link's place" >&2
    fi
done
[ $# -eq 0 ] || dvc add "$@" > /dev/null
