
function %(complete_func)s;
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp | string collect) \
COMP_CWORD=(commandline -t | string collect) %(prog_name)s);

    for completion in $response;
        set -l metadata (string split --max 1 -- "," $completion);
        switch $metadata[1];
            case dir;
                __fish_complete_directories $metadata[2];
            case file;
                __fish_complete_path $metadata[2];
            case plain field;
                printf '%%s\n' $metadata[2];
        end;
    end;
end;

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)";
